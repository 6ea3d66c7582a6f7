"""A run and the file that was selected from it answer raw rows with the same numbers."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command_line import call, call_json, tiny

import fastlbbnn

COLUMNS = ("age", "dose", "site")


@pytest.fixture(scope="module", params=["classes", "numbers"])
def place(request, tmp_path_factory) -> Path:
    """Features far from size 1, a run on them, and its selected file."""
    folder = tmp_path_factory.mktemp(request.param)
    g = np.random.default_rng(0)
    z = g.standard_normal((240, 3))
    x = z * [12.0, 300.0, 0.01] + [50.0, 2000.0, 7.0]
    y = np.where(z[:, 0] + z[:, 1] > 0, "ill", "well") if request.param == "classes" else 2000 + 30 * z[:, 0]
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*COLUMNS, "y"], *([*map(float, row), value] for row, value in zip(x, y))])
    given = ("--target", "y", "--standardise", "--epochs", 30)
    call(*tiny(folder / "table.csv", folder / "run", *given))
    call("select", folder / "run", "-o", folder / "selected.safetensors")
    return folder


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open() as file:
        head, *rows = csv.reader(file)
    return head, rows


@pytest.mark.parametrize("draws", [(), ("--samples", 60)])
def test_predict_writes_the_same_columns_and_numbers(draws, place, tmp_path):
    written = []
    for model in ("run", "selected.safetensors"):
        call("predict", place / model, place / "table.csv", "-o", tmp_path / f"{model}.csv", *draws)
        written.append(table(tmp_path / f"{model}.csv"))
    (head, rows), (other_head, other_rows) = written
    assert head == other_head and len(rows) == len(other_rows) == 240
    for row, other in zip(rows, other_rows):
        for name, one, two in zip(head, row, other):
            if name == "decision":
                assert one == two
            else:
                # Seven digits are written; a few roundings of float32 lie between the two networks.
                assert float(one) == pytest.approx(float(two), rel=2e-5, abs=2e-6), name


def test_load_takes_raw_rows_in_every_form(place):
    rows = [{"age": 61.0, "dose": 1900.0, "site": 7.01}, {"age": 40.0, "dose": 2500.0, "site": 6.99}]
    forms = [rows, {name: [row[name] for row in rows] for name in reversed(COLUMNS)},
             np.array([[row[name] for name in COLUMNS] for row in rows])]  # fmt: skip
    answers = [fastlbbnn.load(place / m).predict(form) for m in ("run", "selected.safetensors") for form in forms]
    for answer in answers:
        assert isinstance(answer, np.ndarray) and answer.shape == answers[0].shape
        assert answer == pytest.approx(answers[0], rel=2e-5, abs=2e-6)
    as_tensor = fastlbbnn.load(place / "run").predict(torch.tensor(forms[2]))
    assert isinstance(as_tensor, torch.Tensor) and as_tensor.numpy() == pytest.approx(answers[0])


def test_load_draws_the_same_networks(place):
    rows = np.array([[61.0, 1900.0, 7.01], [40.0, 2500.0, 6.99]])
    one, two = (
        fastlbbnn.load(place / m).predict(rows, samples=7, generator=torch.Generator().manual_seed(3))
        for m in ("run", "selected.safetensors")
    )
    assert one == pytest.approx(two, rel=2e-5, abs=2e-6)


def test_the_file_says_where_it_came_from(place):
    model = fastlbbnn.load(place / "selected.safetensors")
    about = model.provenance
    assert about["method"] == "LBBNN-GP-MF" and about["seed"] == 0 and about["dataset"] == "table.csv"
    assert len(about["data_sha256"]) == 64 and 0.0 < about["density"] <= 1.0
    assert about["recipe"] and about["versions"]["torch"] == torch.__version__
    assert str(place) not in (place / "selected.safetensors").read_bytes().decode("latin-1")


def test_a_selected_file_refuses_what_it_cannot_do(place):
    given = (place / "selected.safetensors", place / "table.csv")
    for options, message in (
        (("--mode", "sampled"), "a selected network is a median model"),
        (("--threshold", 0.4), "are chosen already"),
    ):
        result = call("predict", *given, *options, code=2)
        assert message in " ".join(result.stderr.split())


def test_rows_with_a_target_are_scored(place):
    found = call_json("predict", place / "run", place / "table.csv")
    assert "accuracy" in found or "rmse" in found


def test_load_says_what_it_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a run folder"):
        fastlbbnn.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        fastlbbnn.load(tmp_path)
