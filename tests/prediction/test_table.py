"""Predictions as a table."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import nn

import fastlbbnn
from fastlbbnn.nn import MLP
from fastlbbnn.prediction import table as answers
from fastlbbnn.prediction.predict import quantiles


def fixed(weight: torch.Tensor) -> nn.Module:
    """A plain network whose outputs are x times the weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return nn.Sequential(layer)


def test_a_confident_row_is_decided_and_another_is_a_doubt():
    x = torch.tensor([[10.0], [0.1]])
    network = fixed(torch.tensor([[0.0], [1.0]]))
    table = answers.answer(network, x, "categorical", mode="mean", class_names=("cat", "dog"))
    p = torch.tensor([10.0, 0.1], dtype=torch.float64).sigmoid().numpy()
    assert table["p_dog"] == pytest.approx(p) and table["p_cat"] == pytest.approx(1.0 - p)
    assert table["decision"].tolist() == ["dog", "doubt"]
    # One network: nothing that draws could disagree on.
    assert table["mutual_information"].tolist() == [0.0, 0.0]
    expected = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    # float32 probabilities close to 1 carry an error of 2^-24, which 1 - p multiplies by log(1 - p) ~ 10.
    assert table["entropy"] == pytest.approx(expected, abs=10 * 2.0**-23)
    assert answers.summary(table, torch.tensor([1, 0])) == {"count": 2, "doubts": 1, "accuracy": 0.5}


def test_a_class_called_doubt_is_no_doubt():
    network, x = fixed(torch.tensor([[0.0], [1.0]])), torch.tensor([[-10.0], [0.1], [10.0]])
    table = answers.answer(network, x, "categorical", mode="mean", class_names=("doubt", "sure"))
    assert table["decision"].tolist() == ["doubt", "(doubt)", "sure"]
    assert answers.summary(table)["doubts"] == 1


def test_one_logit_is_two_classes():
    table = answers.answer(
        fixed(torch.tensor([[1.0]])), torch.tensor([[0.0], [5.0]]), "bernoulli", mode="mean"
    )
    assert table["p_0"] + table["p_1"] == pytest.approx(1.0) and table["p_1"][0] == 0.5
    assert table["decision"].tolist() == ["doubt", "1"]


def test_probabilities_have_intervals_of_the_draws():
    torch.manual_seed(0)
    network, x = MLP(3, 4, 3), torch.rand(5, 3)
    table = answers.answer(network, x, "categorical", samples=60, seed=7, intervals=True)
    generator = torch.Generator().manual_seed(7)
    draws = fastlbbnn.predict(
        network, x, samples=60, average=False, generator=generator, likelihood="categorical"
    )
    for c in range(3):
        ends = torch.quantile(draws[..., c], torch.tensor([0.025, 0.975]), dim=0)
        for name, expected in zip((f"lower_{c}", f"upper_{c}"), ends):
            # Both interpolate between neighbours: two roundings of numbers below 1.
            assert table[name] == pytest.approx(expected.numpy(), abs=2 * 2.0**-23)
        assert (table[f"lower_{c}"] < table[f"p_{c}"]).all() and (table[f"p_{c}"] < table[f"upper_{c}"]).all()
    with pytest.warns(UserWarning, match="from 5 draws are too narrow"):
        answers.answer(network, x, "categorical", samples=5, intervals=True)


def test_numbers_have_means_and_intervals():
    torch.manual_seed(0)
    network, x = MLP(3, 4, 2), torch.rand(5, 3)
    table = answers.answer(network, x, "gaussian", samples=200, seed=7)
    names = ["mean", "lower", "upper", "mean_lower", "mean_upper"]
    assert list(table) == [f"{name}_{output}" for output in (1, 2) for name in names]
    drawn = fastlbbnn.predict(
        network, x, samples=200, likelihood="gaussian", average=False,
        generator=torch.Generator().manual_seed(7),
    )  # fmt: skip
    assert table["mean_lower_2"].tolist() == quantiles(drawn, (0.025,))[0][:, 1].tolist()
    assert table["mean_1"].tolist() == pytest.approx(drawn.mean(0)[:, 0].tolist())
    # What is unknown about the mean, and a standard deviation of one on top.
    assert (table["lower_1"] < table["mean_lower_1"]).all() and (
        table["upper_1"] > table["mean_upper_1"]
    ).all()
    single = answers.answer(network, x, "poisson", mode="mean")
    assert list(single) == [f"{name}_{output}" for output in (1, 2) for name in names[:3]]
    assert (single["mean_1"] > 0).all()
    assert set(answers.summary(table, torch.zeros(5, 2))) == {"count", "rmse"}


def test_the_seed_decides_the_draws():
    network, x = MLP(3, 4, 2), torch.rand(5, 3)
    a, b, c = (answers.answer(network, x, "categorical", seed=seed)["entropy"] for seed in (1, 1, 2))
    assert a.tolist() == b.tolist() != c.tolist()


def test_a_file_is_what_the_screen_shows(tmp_path):
    table = answers.answer(MLP(3, 4, 2), torch.rand(5, 3), "categorical")
    shown = io.StringIO()
    answers.write_csv(table, shown)
    answers.write(table, tmp_path / "new" / "p.csv")
    assert (tmp_path / "new" / "p.csv").read_text() == shown.getvalue()
    answers.write(table, tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as arrays:
        assert {k: arrays[k].tolist() for k in arrays} == {k: v.tolist() for k, v in table.items()}
    assert answers.as_rows(table)[3]["entropy"] == table["entropy"][3]
