"""Figures of predictions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.tiny_runs import make_dataset, make_run

from fastlbbnn.data.preparation import Target
from fastlbbnn.prediction.predict import log_prob_draws, predict_interval
from fastlbbnn.runs.evaluate import evaluate


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_numbers_have_a_density_and_a_coverage(likelihood, tmp_path):
    run, dataset = make_run(tmp_path / "run", likelihood=likelihood), make_dataset(likelihood)
    rows = [row for row in run.results["rows"] if row["network"] == "trained"]
    averaged = next(row for row in rows if (row["gamma"], row["R"]) == ("SIM", 4))
    found = predict_interval(
        run.model(), dataset.x_test, level=0.95, of="response", samples=4,
        generator=torch.Generator().manual_seed(0),
    )
    y = dataset.y_test.unsqueeze(1)
    assert averaged["coverage"] == ((found.lower <= y) & (y <= found.upper)).double().mean().item()
    drawn = log_prob_draws(
        run.model(), dataset.x_test, dataset.y_test, samples=4,
        generator=torch.Generator().manual_seed(0),
    )
    assert averaged["nll"] == pytest.approx(-drawn.double().exp().mean(0).log().mean().item(), rel=1e-12)
    assert all("coverage" not in row for row in rows if row["R"] == 1 and row["beta"] == "SIM")


def test_figures_of_numbers_are_in_the_units_of_the_data(tmp_path):
    run, dataset = make_run(tmp_path / "run", likelihood="gaussian"), make_dataset("gaussian")
    target = Target(mean=(7.0,), scale=(250.0,))
    in_units = replace(dataset, preparation=replace(dataset.preparation, target=target))
    how = {"samples": 4}
    plain = evaluate(run.model(), run.method, dataset, **how)
    scaled = evaluate(run.model(), run.method, in_units, **how)
    for one, other in zip(plain, scaled):
        # float32 targets of the size 500, each with a relative rounding error of 6e-8 at most.
        assert other["rmse"] == pytest.approx(250.0 * one["rmse"], rel=1e-5)
        if "nll" in one:
            assert other["nll"] == pytest.approx(one["nll"] + math.log(250.0), abs=1e-12)
            assert other["coverage"] == one["coverage"]
