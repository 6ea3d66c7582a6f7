"""The paper's published numbers, as rows."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from typing import Any

from .tables import Row, read_rows


@cache
def _read(name: str) -> tuple[Row, ...]:
    with as_file(files("fastlbbnn.paper") / "numbers" / name) as path:
        return tuple(read_rows(path))


def predictions(dataset: str, stage: str) -> list[dict[str, Any]]:
    """Rows of the tables of predictions; ``stage``: trained, post-trained or fixed-prior."""
    return [dict(row) for row in _read("results.csv") if row["dataset"] == dataset and row["stage"] == stage]


def inclusion(dataset: str) -> list[dict[str, Any]]:
    """Mean inclusion probability per method and layer, with ``min`` and ``max``."""
    return [dict(row) for row in _read("inclusion.csv") if row["dataset"] == dataset]


def pruning(dataset: str) -> list[dict[str, Any]]:
    """Accuracies of the frequentist network, one per density."""
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
