"""The paper's published numbers, as rows."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _read(name: str) -> tuple[dict[str, Any], ...]:
    """Rows of a CSV file of the package; empty cells are None, numbers are numbers."""
    text = files("fastlbbnn.paper").joinpath("numbers", name).read_text(encoding="utf-8")
    return tuple({k: _value(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines()))


def _value(cell: str) -> Any:
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def predictions(dataset: str, stage: str) -> list[dict[str, Any]]:
    """Rows of the tables of predictions; ``stage``: trained, post-trained or fixed-prior."""
    return [dict(row) for row in _read("results.csv") if row["dataset"] == dataset and row["stage"] == stage]


def inclusion(dataset: str) -> list[dict[str, Any]]:
    """Mean inclusion probability a method and layer, with ``min`` and ``max``."""
    return [dict(row) for row in _read("inclusion.csv") if row["dataset"] == dataset]


def pruning(dataset: str) -> list[dict[str, Any]]:
    """Accuracies of the frequentist network, a density each."""
    return [dict(row) for row in _read("fnn_pruning.csv") if row["dataset"] == dataset]


def epoch_ratio(dataset: str, method: str) -> float | None:
    """The method's epoch time over the frequentist network's, both as published."""
    plain = next((row["epoch_seconds"] for row in pruning(dataset)), None)
    own = next(
        (row["epoch_seconds_rtx2080ti"] for row in predictions(dataset, "trained")
         if row["method"] == method and row["epoch_seconds_rtx2080ti"] is not None), None,
    )  # fmt: skip
    if method == "FNN":
        return None if plain is None else 1.0
    return None if plain is None or own is None else own / plain
