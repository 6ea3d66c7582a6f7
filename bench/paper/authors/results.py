"""The finished runs: ``authors_predictions.csv`` and ``authors_layers.csv`` of one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastlbbnn.paper.tables import read_rows, write_csv

Row = dict[str, Any]
#: Kind of row -> its file.
FILES = {"predictions": "authors_predictions.csv", "layers": "authors_layers.csv"}
#: What every row of these files has.
SETTINGS = {"dataset", "method", "seed", "epochs", "post_epochs"}


def read(folder: Path, dataset: str | None = None) -> dict[str, list[Row]]:
    """All rows, or those of one data set."""
    found: dict[str, list[Row]] = {}
    for kind, name in FILES.items():
        rows = read_rows(folder / name) if (folder / name).exists() else []
        if rows and not SETTINGS <= set(rows[0]):
            raise SystemExit(
                f"{folder / name} is not a file of this script: expected the columns "
                f"{', '.join(sorted(SETTINGS))}"
            )
        found[kind] = [row for row in rows if dataset in (None, row["dataset"])]
    return found


def finished(folder: Path, settings: Row) -> bool:
    """Whether rows with these settings (dataset, method, seed, epochs, post_epochs) are there."""
    return any(all(row.get(k) == v for k, v in settings.items()) for row in read(folder)["predictions"])


def append(folder: Path, settings: Row, rows: list[Row], inclusion: list[Row]) -> None:
    """Adds the rows of one run, each with its settings. A file is there whole or not at all."""
    found = read(folder)
    for row in rows:
        accuracies = row.get("accuracies")
        text = {} if accuracies is None else {"accuracies": " ".join(f"{a:.4g}" for a in accuracies)}
        found["predictions"].append({**settings, **row, **text})
    found["layers"] += [{**settings, **row} for row in inclusion]
    for kind, name in FILES.items():
        write_csv(folder / name, found[kind])
