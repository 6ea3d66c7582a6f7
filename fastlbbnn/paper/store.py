"""The results of runs as tidy tables: what a repository keeps of them instead of their folders.

    runs.csv           one row per run: how it was trained, how long that took, on which machine
    predictions.csv    one row per run, saved network and way to predict: accuracy, density, ...
    layers.csv         one row per run, saved network and layer: inclusion, density, a histogram
    recipes.json       hash of a recipe -> the recipe, once for all runs that were trained by it

``run`` is the key of all tables: the run's folder below ``runs/``, such as "mnist/LBBNN-GP-MF/paper/seed-0".
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._util.files import replace_file

Row = dict[str, Any]

RUNS, PREDICTIONS, LAYERS, RECIPES = "runs.csv", "predictions.csv", "layers.csv", "recipes.json"

#: What is taken from a run's ``run.json``, and from its ``timing.json`` under other names.
_CONFIG = ("method", "dataset", "seed", "likelihood", "n_train", "threads", "seconds")
_TIMING = {
    "epoch_seconds": "timed_epoch_seconds", "fnn_epoch_seconds": "fnn_epoch_seconds", "ratio": "ratio",
    "rounds": "rounds", "threads": "timed_threads", "machine": "timed_on",
}
_TEXT = {"run", "method", "dataset", "recipe", "recipe_hash", "likelihood", "timed_on", "sizes", "network",
         "gamma", "beta", "inclusion_counts", "fastlbbnn", "torch", "python", "machine", "commit", "triton"}


#: A prediction's columns, in their order; a measure that a kind of data does not have is left out.
_MEASURES = (
    "accuracy", "accuracy_at_095", "classified_at_095", "rmse", "nll", "ece", "coverage", "density",
)
_PREDICTION = ("network", "gamma", "beta", "threshold", "R", *_MEASURES)


@dataclass(frozen=True)
class Stored:
    """What is known of a finished run without its folder."""

    about: Row
    recipe: Mapping[str, Any]
    predictions: list[Row] = field(default_factory=list)
    layers: list[Row] = field(default_factory=list)

    @property
    def samples(self) -> int:
        return self.about["samples"]

    @property
    def timing(self) -> Row:
        return {name: self.about[column] for name, column in _TIMING.items()}


def recipe_hash(config: Mapping[str, Any]) -> str:
    """A hash of all that decides a run (``runs.recipe.decisive``)."""
    from ..runs.recipe import decisive  # needs torch, and the --help of commands does not

    return hashlib.sha256(json.dumps(decisive(config), sort_keys=True).encode()).hexdigest()[:12]


class ResultStore(Mapping[str, Stored]):
    """Runs by their key."""

    def __init__(self, runs: Mapping[str, Stored] | None = None) -> None:
        self._runs = dict(runs or {})

    def __getitem__(self, run: str) -> Stored:
        return self._runs[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @staticmethod
    def read(folder: Path) -> ResultStore:
        """The tables of a folder; an empty store where there are none."""
        if not (folder / RUNS).exists():
            return ResultStore()
        recipes = json.loads((folder / RECIPES).read_text(encoding="utf-8"))
        runs = {
            row["run"]: Stored(row, recipes[row["recipe_hash"]]) for row in _read(folder / RUNS)
        }
        for name in (PREDICTIONS, LAYERS):
            for row in _read(folder / name):
                stored = runs[row.pop("run")]
                present = {key: value for key, value in row.items() if value is not None}
                if name == LAYERS:
                    if "inclusion_counts" in present:
                        present["inclusion_counts"] = [
                            int(count) for count in present["inclusion_counts"].split()
                        ]
                    stored.layers.append(present)
                else:
                    stored.predictions.append(_prediction(present))
        return ResultStore(runs)

    def add(self, run: str, folder: Path) -> None:
        """Take over what a finished run's folder says."""
        config, results, timing = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("run", "results", "timing")
        )
        about = {
            "run": run, **{key: config.get(key) for key in _CONFIG}, "recipe": config["recipe"]["name"],
            "recipe_hash": recipe_hash(config["recipe"]), "sizes": "-".join(map(str, config["sizes"])),
            "epoch_seconds": config.get("epoch_seconds"), **config["versions"],
            "n_test": results["n_test"], "samples": results["samples"],
            **{column: timing.get(name) for name, column in _TIMING.items()},
        }  # fmt: skip
        self._runs[run] = Stored(
            about, config["recipe"], [_prediction(row) for row in results["rows"]], results["layers"]
        )

    def write(self, folder: Path) -> list[Path]:
        """All tables, sorted by run, so that a new run is a few new lines."""
        folder.mkdir(parents=True, exist_ok=True)
        order = sorted(self._runs)
        recipes = {self._runs[run].about["recipe_hash"]: self._runs[run].recipe for run in order}
        with replace_file(folder / RECIPES) as temporary:
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(recipes[key])}" for key in sorted(recipes))
            temporary.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
        _write(folder / RUNS, (self._runs[run].about for run in order))
        _write(
            folder / PREDICTIONS,
            ({"run": run, **row} for run in order for row in self._runs[run].predictions),
        )
        _write(folder / LAYERS, (_layer(run, row) for run in order for row in self._runs[run].layers))
        return [folder / name for name in (RUNS, PREDICTIONS, LAYERS, RECIPES)]


def _prediction(row: Row) -> Row:
    """In the columns' order; what was decided at 0.95 is None where nothing was."""
    full = {"accuracy_at_095": None, "classified_at_095": None, **row}
    columns = (*_PREDICTION, *(key for key in full if key not in _PREDICTION))
    return {key: full[key] for key in columns if key in full}


def _layer(run: str, row: Row) -> Row:
    counts = row.get("inclusion_counts")
    return {"run": run, **row, **({} if counts is None else {"inclusion_counts": " ".join(map(str, counts))})}


def _read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: _value(key, cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def _value(key: str, cell: str) -> Any:
    if cell == "":
        return None
    if key in _TEXT:
        return cell
    return float(cell) if any(mark in cell for mark in ".ean") else int(cell)


def _write(path: Path, rows: Iterable[Row]) -> None:
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row)  # floats as repr: nothing is lost
