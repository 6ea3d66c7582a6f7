"""The frontier: one run, a held and finished copy at every density."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastlbbnn.data import Dataset
from fastlbbnn.runs.frontier import Point, frontier, sparsest_within
from fastlbbnn.runs.recipes import find_recipe


def _recipe():
    return replace(find_recipe("LBBNN-GP-MF"), hidden=(12, 8), batch=50).scaled(12)


@pytest.fixture
def classes() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return Dataset("toy", x[:200], y[:200], x[200:], y[200:], "categorical", n_classes=3)


def test_every_point_has_the_density_that_was_asked_for(classes):
    seen = []
    points = frontier(
        "LBBNN-GP-MF", classes, densities=(0.1, 0.5, 0.25), recipe=_recipe(), progress=seen.append
    )
    total = 6 * 12 + 12 * 8 + 8 * 3
    assert seen == points
    assert [p.weights for p in points] == [round(d * total) for d in (0.5, 0.25, 0.1)]
    assert all(0.0 <= p.accuracy <= 1.0 and p.rmse is None and p.nll > 0.0 for p in points)
    assert [p.epochs for p in points] == sorted(p.epochs for p in points)


def test_the_same_seed_gives_the_same_points(classes):
    one, other = (
        frontier("LBBNN-GP-MF", classes, densities=(0.3, 0.1), recipe=_recipe(), seed=4) for _ in range(2)
    )
    assert [replace(p, seconds=0.0) for p in one] == [replace(p, seconds=0.0) for p in other]


def test_numbers_have_an_error_in_their_units(classes):
    y_train, y_test = (x[:, 0] * 2.0 for x in (classes.x_train, classes.x_test))
    data = replace(
        classes, y_train=y_train, y_test=y_test, likelihood="gaussian", n_classes=None, preparation=None
    )
    (point,) = frontier("LBBNN-GP-MF", data, densities=(0.2,), recipe=_recipe())
    assert point.accuracy is None and point.ece is None and 0.0 < point.rmse < 2.5


def _points(accuracies, rmse=None):
    return [
        Point(0.1 / (i + 1), 1000 // (i + 1), a, a, r, 0.1, 0.01, 1, 1.0)
        for i, (a, r) in enumerate(zip(accuracies, rmse or [None] * len(accuracies)))
    ]


def test_the_sparsest_within_a_loss_of_accuracy():
    points = _points([0.980, 0.985, 0.983, 0.975])
    assert sparsest_within(points, 0.0) is points[1]
    assert sparsest_within(points, 0.002) is points[2]
    assert sparsest_within(points, 0.01) is points[3]


def test_the_sparsest_within_a_growth_of_the_error():
    points = _points([None] * 3, [1.0, 1.01, 1.2])
    assert sparsest_within(points, 0.02) is points[1]


@pytest.mark.parametrize("wrong", [-0.1, 1.0, "0.1", True])
def test_a_loss_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="max_loss"):
        sparsest_within(_points([0.9]), wrong)


@pytest.mark.parametrize("wrong", [(), (0.0,), (1.0,)])
def test_densities_that_make_no_sense_are_refused(classes, wrong):
    with pytest.raises(ValueError, match="densities"):
        frontier("LBBNN-GP-MF", classes, densities=wrong)


def test_training_can_be_asked_for_a_loss(classes, tmp_path):
    from fastlbbnn.runs import train

    run = train(
        "LBBNN-GP-MF", classes, _recipe(), out=tmp_path / "r", max_loss=0.05, progress=False
    )
    assert run.recipe.density is not None
    again = train(
        "LBBNN-GP-MF", classes, _recipe(), out=tmp_path / "r", max_loss=0.05, progress=False
    )
    assert again.recipe == run.recipe and again.config["seconds"] == run.config["seconds"]
    with pytest.raises(ValueError, match="expected one of the three"):
        train("LBBNN-GP-MF", classes, _recipe(), out=tmp_path / "x", max_loss=0.05, density=0.1)
