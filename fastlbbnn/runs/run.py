"""A run folder: what training writes and what evaluation, reports and tables read.

    run.json          the method, the data, the whole recipe, the seed, versions, times
    history.csv       one row an epoch
    trained.safetensors, post-trained.safetensors, post-median.safetensors
                      the network at the ends of the stages
    checkpoint.safetensors
                      where to continue; gone when the run is finished
    results.json      the predictions' figures, by ``fastlbbnn.runs.evaluate``
"""

from __future__ import annotations

import csv
import json
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__
from .._util.files import replace_file
from ..inference.dispersion import GaussianDispersion
from ..inference.likelihoods import Likelihood, as_likelihood
from .checkpoint import load_network
from .methods import Method, find_method
from .recipe import Recipe

FORMAT = 1

HISTORY_COLUMNS = (
    "stage", "epoch", "seconds", "loss", "log_likelihood", "kl", "density", "mean_inclusion",
    "train_accuracy",
)


def versions() -> dict[str, str]:
    return {
        "fastlbbnn": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(),
    }


def write_json(path: Path, content: Any) -> None:
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class Run:
    """A run folder that was read."""

    folder: Path
    config: dict[str, Any]

    @property
    def method(self) -> Method:
        return find_method(self.config["method"])

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe.from_settings(self.config["settings"])

    @property
    def finished(self) -> bool:
        return self.config["status"] == "finished"

    @property
    def stages(self) -> list[str]:
        """Names of the networks that are saved: "trained" first."""
        names = [s.saves for s in self.recipe.stages if s.saves is not None]
        return [n for n in names if (self.folder / f"{n}.safetensors").exists()]

    @property
    def history(self) -> list[dict[str, Any]]:
        return read_history(self.folder / "history.csv")

    @property
    def results(self) -> dict[str, Any] | None:
        path = self.folder / "results.json"
        return json.loads(path.read_text()) if path.exists() else None

    def new_network(self) -> nn.Module:
        """Untrained, with the recipe's options."""
        return self.method.build(self.config["sizes"], self.config["n_train"], **self.recipe.options)

    def start(self) -> nn.Module:
        """The network as training found it: the run's seed decides."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config["seed"])
            return self.new_network()

    def new_noise(self) -> GaussianDispersion | None:
        """The likelihood, untrained, where it has parameters of its own: a Gaussian's variance."""
        if self.config["likelihood"] != "gaussian":
            return None
        return GaussianDispersion(n_values=self.config["n_train"] * self.config["sizes"][-1])

    def likelihood(self, stage: str = "trained") -> Likelihood:
        """For ``predict`` and its like, with the noise that the stage has learnt."""
        noise = self.new_noise()
        if noise is None:
            return as_likelihood(self.config["likelihood"])
        with torch.random.fork_rng(devices=[]):
            load_network(self.folder / f"{stage}.safetensors", self.new_network(), noise)
        return noise

    def model(self, stage: str = "trained") -> nn.Module:
        """The network at the end of a stage, in eval() mode."""
        path = self.folder / f"{stage}.safetensors"
        if not path.exists():
            has = ", ".join(self.stages) or "none yet"
            raise FileNotFoundError(f"{self.folder} has no network {stage!r}; it has: {has}")
        # Building draws initial values; whoever reads a run keeps their random state.
        with torch.random.fork_rng(devices=[]):
            network = self.new_network()
        load_network(path, network)
        return network.eval()


def load_run(folder: Path | str) -> Run:
    folder = Path(folder)
    path = folder / "run.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} is no run folder: it has no run.json (`fastlbbnn train` makes one)"
        )
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); train again into another folder") from error
    if config.get("format") != FORMAT:
        raise ValueError(f"{path} has format {config.get('format')!r}; this version reads {FORMAT}")
    return Run(folder, config)


def read_history(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            {k: v if k == "stage" else int(v) if k == "epoch" else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def write_history(path: Path, rows: list[dict[str, Any]]) -> None:
    with replace_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, HISTORY_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
