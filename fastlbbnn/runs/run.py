"""A run folder: what training writes and what evaluation, reports and tables read.

    run.json          the method, the data and their preparation, the whole recipe, the seed, versions, times
    history.csv       one row per epoch
    trained.safetensors, post-trained.safetensors, post-median.safetensors
                      the networks at the ends of the recipe's stages
    checkpoint.safetensors
                      where to continue; gone when the run is finished
    results.json      the predictions' figures, by ``fastlbbnn.runs.evaluate``
    .lock             while a process trains
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn

from .._util.files import read_json, replace_file
from .._util.typed import wrong_field
from ..data.preparation import Preparation
from ..data.source import Source
from ..inference.likelihoods import LIKELIHOODS, Likelihood, set_likelihood
from .checkpoint import load_network
from .methods import Method, find_method
from .recipe import Recipe

FORMAT = 2

HISTORY_COLUMNS = (
    "stage", "epoch", "seconds", "loss", "log_likelihood", "kl", "density", "mean_inclusion",
    "train_accuracy",
)

#: What to do about a run folder that cannot be read.
_REMEDY = "put back a copy of it, or train again (`fastlbbnn train --restart`)"


class RunConfig(TypedDict):
    """What run.json holds."""

    format: int
    method: str
    #: Name of the data, and where they came from (``data.source.Source``); None: from Python.
    dataset: str
    data: dict[str, Any] | None
    #: How raw rows become inputs and outputs answers (``data.preparation.Preparation``).
    preparation: dict[str, Any]
    recipe: dict[str, Any]
    seed: int
    #: Units of the network: inputs, hidden, outputs.
    sizes: list[int]
    #: What the outputs mean, as the run began (``Likelihood.to_config``).
    likelihood: dict[str, Any]
    n_train: int
    versions: dict[str, Any]
    threads: int
    #: "running" or "finished".
    status: str
    #: How many trainings came before this one and learned nothing, and the seed that the latest began with.
    attempt: NotRequired[int]
    start_seed: NotRequired[int]
    #: Once it is finished: nats per training row above the best constant, and whether that counts as learned.
    gain: NotRequired[float]
    learned: NotRequired[bool]
    #: Once training is finished: how long it took, and the median epoch of the main stage.
    seconds: NotRequired[float]
    epoch_seconds: NotRequired[float | None]


class Results(TypedDict):
    """What results.json holds."""

    rows: list[dict[str, Any]]
    layers: list[dict[str, Any]]
    #: The best constant prediction's figures on the same rows.
    constant: dict[str, Any]
    n_test: int
    samples: int
    seed: int


@dataclass(frozen=True)
class Run:
    """A run folder that was read."""

    folder: Path
    config: Mapping[str, Any]
    recipe: Recipe = field(repr=False)
    #: How raw rows become the network's inputs, and its outputs answers.
    preparation: Preparation = field(repr=False)
    #: Where the data came from, if ``fastlbbnn.data.load`` read them.
    source: Source | None = None

    @property
    def method(self) -> Method:
        return find_method(self.config["method"])

    @property
    def start_seed(self) -> int:
        """The seed of initial values and noise: the run's, unless training had to start again."""
        return self.config.get("start_seed", self.config["seed"])

    @property
    def finished(self) -> bool:
        return self.config["status"] == "finished"

    @property
    def networks(self) -> list[str]:
        """Names of the networks that are saved: "trained" first."""
        names = [s.saves for s in self.recipe.stages if s.saves is not None]
        return [n for n in names if (self.folder / f"{n}.safetensors").exists()]

    @property
    def history(self) -> list[dict[str, Any]]:
        return read_history(self.folder / "history.csv")

    @property
    def results(self) -> Results | None:
        """Results of the last evaluation; None without one."""
        path = self.folder / "results.json"
        if not path.exists():
            return None
        remedy = "`fastlbbnn evaluate` writes it again"
        found = read_json(path, remedy)
        wrong = wrong_field(found, Results)
        if wrong is None:
            wrong = next(
                (f"a row has no {key!r}" for key in ("network", "gamma", "beta", "R") for row in found["rows"]
                 if key not in row), None,
            )  # fmt: skip
        if wrong is not None:
            raise ValueError(f"{path} is damaged: {wrong}; {remedy}")
        return found  # type: ignore[return-value]

    def new_network(self) -> nn.Module:
        """Untrained, with the recipe's options and the likelihood that the run began with."""
        try:
            network = self.method.build(self.config["sizes"], self.config["n_train"], **self.recipe.options)
            return set_likelihood(network, Likelihood.from_config(self.config["likelihood"]))
        except (TypeError, ValueError, RuntimeError) as error:
            sizes = "-".join(map(str, self.config["sizes"]))
            raise ValueError(f"the network {sizes} of {self.folder} cannot be built: {error}") from error

    def start(self) -> nn.Module:
        """The network as training found it: the run's seed decides."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.start_seed)
            return self.new_network()

    def model(self, network: str = "trained") -> nn.Module:
        """A saved network in eval() mode, with its likelihood and what that has learnt."""
        path = self.folder / f"{network}.safetensors"
        if not path.exists():
            has = ", ".join(self.networks) or "none yet"
            raise FileNotFoundError(f"{self.folder} has no network {network!r}; it has: {has}")
        self._check_size(path)
        # Building draws initial values; whoever reads a run keeps their random state.
        with torch.random.fork_rng(devices=[]):
            model = self.new_network()
        load_network(path, model)
        return model.eval()

    def _check_size(self, path: Path) -> None:
        """A weight takes at least a byte: a damaged number must not ask for all the memory there is."""
        sizes = self.config["sizes"]
        weights, length = sum(a * b for a, b in zip(sizes, sizes[1:])), path.stat().st_size
        if weights > length:
            raise ValueError(
                f"{path} is damaged: it has {length} bytes, too few for the {weights} weights of the "
                f"network that run.json describes; {_REMEDY}"
            )


def load_run(folder: Path | str) -> Run:
    folder = Path(folder)
    path = folder / "run.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} is not a run folder: it has no run.json (`fastlbbnn train` makes one)"
        )
    config = read_json(path, _REMEDY)
    if config.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {config.get('format')!r} and this version reads {FORMAT}; {_REMEDY}"
        )
    try:
        _check(config)
        recipe = Recipe.from_config(config["recipe"])
        preparation = Preparation.from_config(config["preparation"], config["sizes"][0])
        source = None if config["data"] is None else Source.from_config(config["data"])
        return Run(folder, config, recipe, preparation, source)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; {_REMEDY}") from error


def _check(config: dict[str, Any]) -> None:
    wrong = wrong_field(config, RunConfig)
    if wrong is not None:
        raise ValueError(wrong)
    find_method(config["method"])
    if len(config["sizes"]) < 2 or min(config["sizes"]) < 1 or config["n_train"] < 1:
        raise ValueError(
            f"'sizes' are {config['sizes']} for {config['n_train']} rows, expected two positive numbers at "
            "least, and a row"
        )
    name, outputs = config["likelihood"].get("name"), config["likelihood"].get("outputs", 1)
    if name not in LIKELIHOODS or outputs not in (1, config["sizes"][-1]):
        raise ValueError(
            f"'likelihood' is {name!r} of {outputs!r} outputs, expected one of {', '.join(LIKELIHOODS)}, of "
            f"1 or {config['sizes'][-1]}"
        )
    if config["status"] not in ("running", "finished"):
        raise ValueError(f"'status' is {config['status']!r}, expected 'running' or 'finished'")


def read_history(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if tuple(reader.fieldnames or ()) != HISTORY_COLUMNS:
                raise ValueError(f"its columns are not {', '.join(HISTORY_COLUMNS)}")
            return [_history_row(row, reader.line_num) for row in reader]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}; {_REMEDY}") from error


def _history_row(row: Mapping[str, Any], line: int) -> dict[str, Any]:
    if set(row) != set(HISTORY_COLUMNS) or None in row.values():
        raise ValueError(f"line {line} has not as many values as the header")
    try:
        numbers = {key: float(row[key]) for key in HISTORY_COLUMNS[2:]}
        return {"stage": row["stage"], "epoch": int(row["epoch"]), **numbers}
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from error


def write_history(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HISTORY_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
