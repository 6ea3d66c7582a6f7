"""`fastlbbnn predict`: what it writes, says and refuses."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from support.command_line import call, call_json
from support.tiny_runs import make_images, make_run


def test_predict_writes_probabilities_uncertainty_and_decisions(run, data, tmp_path):
    sampled = ("--mode", "sampled", "--samples", 20, "--doubt", 0.9)
    call("predict", run, data, "-o", tmp_path / "p.csv", *sampled)
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert list(rows[0]) == [
        "row",
        "p_0",
        "p_1",
        "p_2",
        "confidence",
        "entropy",
        "mutual_information",
        "decision",
    ]
    for row in rows:
        p = [float(row[f"p_{c}"]) for c in range(3)]
        # Written with seven digits.
        assert sum(p) == pytest.approx(1.0, abs=1e-6) and float(row["confidence"]) == max(p)
        assert float(row["mutual_information"]) <= float(row["entropy"]) + 1e-6
        assert row["decision"] == (str(np.argmax(p)) if max(p) >= 0.9 else "doubt")
    call("predict", run, data, "-o", tmp_path / "p.npz", *sampled)
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["p_1"] == pytest.approx([float(row["p_1"]) for row in rows], rel=1e-6)
        assert arrays["decision"].tolist() == [row["decision"] for row in rows]
    shown = call("predict", run, data, *sampled).stdout
    assert shown == (tmp_path / "p.csv").read_text()


def test_predict_says_what_it_used(run, data, tmp_path):
    found = call_json("predict", run, data, "-o", tmp_path / "p.csv", "--mode", "median-mean")
    assert (found["mode"], found["threshold"], found["samples"]) == ("median-mean", 0.5, None)
    assert found["network"] == "trained"
    found = call_json("predict", run, data, "-o", tmp_path / "p.csv", "--mode", "sampled", "--samples", 3)
    assert (found["mode"], found["threshold"], found["samples"]) == ("sampled", None, 3)
    # By default the means of the median model; with draws asked for, draws of it.
    assert call_json("predict", run, data)["mode"] == "median-mean"
    assert call_json("predict", run, data, "--samples", 3)["mode"] == "median"


def test_a_method_without_a_median_model_predicts_none(data, tmp_path):
    make_run(tmp_path / "fnn", "FNN")
    result = call("predict", tmp_path / "fnn", data, "--mode", "median", code=2)
    assert "FNN has no median model" in " ".join(result.stderr.split())


def test_predict_gives_intervals_of_probabilities(run, data):
    found = call_json("predict", run, data, "--intervals")
    assert found["samples"] == 100
    row = found["rows"][0]
    classes = [name[2:] for name in row if name.startswith("p_")]
    assert len(classes) > 1
    for name in classes:
        assert 0.0 <= row[f"lower_{name}"] <= row[f"upper_{name}"] <= 1.0
    assert "lower_" + classes[0] not in call_json("predict", run, data)["rows"][0]


def test_predict_refuses_what_it_would_ignore(data, tmp_path):
    make_run(tmp_path / "horseshoe", "BNN-HP-MF")
    pruned = ("predict", tmp_path / "horseshoe", data, "--mode", "median-mean")
    result = call(*pruned, "--threshold", 0.4, code=2)
    assert "BNN-HP-MF prunes by a rule of its own" in " ".join(result.stderr.split())
    assert call_json(*pruned)["threshold"] is None
    make_run(tmp_path / "counts", likelihood="poisson")
    np.savez(tmp_path / "x.npz", x=make_images(5, 3)[0].numpy())
    result = call("predict", tmp_path / "counts", tmp_path / "x.npz", "--doubt", 0.9, code=2)
    assert "predicts numbers" in " ".join(result.stderr.split())


def test_intervals_of_numbers_have_enough_draws(tmp_path):
    make_run(tmp_path / "run", likelihood="poisson")
    np.savez(tmp_path / "x.npz", x=make_images(5, 3)[0].numpy())
    drawn = ("--mode", "sampled")
    found = call_json("predict", tmp_path / "run", tmp_path / "x.npz", *drawn)
    assert found["samples"] == 100 and "mean_lower" in found["rows"][0]
    with pytest.warns(UserWarning, match="from 5 draws are too narrow"):
        call("predict", tmp_path / "run", tmp_path / "x.npz", "--samples", 5)
    assert "mean_lower" not in call("predict", tmp_path / "run", tmp_path / "x.npz", "--samples", 1).stdout
