"""What tables and figures are made from: the finished runs of an experiment and their data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Dataset, load
from ..prediction.predict import predict
from ..prediction.uncertainty import class_probabilities
from ..runs import Run, load_run
from ..runs.methods import Prediction, find_method
from ..structure.thresholds import resolve_threshold
from .experiments import Experiment
from .jobs import Job, Settings
from .store import ResultStore, Stored
from .tables import Row, read_rows, source_of


@dataclass(frozen=True)
class Part:
    """One table or figure: Markdown for the experiment's page, and the files that were written."""

    title: str
    text: str
    files: tuple[Path, ...]


@dataclass
class Context:
    experiment: Experiment
    settings: Settings
    jobs: list[Job]
    store: ResultStore = field(default_factory=ResultStore)
    #: Whether figures are drawn; tables always are.
    pictures: bool = True
    _data: dict[str, Dataset] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where CSV files and figures go."""
        return self.settings.out / self.experiment.name

    @cached_property
    def done(self) -> list[Job]:
        return [job for job in self.jobs if job.is_done(self.store)]

    def dataset(self, name: str) -> Dataset:
        if name not in self._data:
            self._data[name] = load(name, root=self.settings.root)
        return self._data[name]

    @property
    def datasets(self) -> list[str]:
        return list(dict.fromkeys(job.dataset for job in self.jobs))

    @property
    def recipes(self) -> list[str]:
        """The asked ones that were run: a method that has none of them is shown beside them with its own."""
        found = dict.fromkeys(job.recipe for job in self.done)
        return [recipe for recipe in self.settings.recipes if recipe in found] or list(found)

    def results(self, job: Job) -> Stored:
        """What is known of a run that is done."""
        if job.has_folder():
            self.store.add(job.run, Path(job.folder))
        return self.store[job.run]

    def first(self, dataset: str, recipe: str, methods: tuple[str, ...] = ()) -> Iterator[tuple[Job, Run]]:
        """The run with the smallest seed of every method, with its networks: ``first_jobs``."""
        for job in self.first_jobs(dataset, recipe, methods):
            yield job, load_run(job.folder)

    def first_jobs(self, dataset: str, recipe: str, methods: tuple[str, ...] = ()) -> Iterator[Job]:
        """The run with the smallest seed of every method; of its own recipe if it does not have this one."""
        wanted = methods or tuple(dict.fromkeys(job.method for job in self.jobs))
        for method in wanted:
            found = [j for j in self.done if (j.dataset, j.method) == (dataset, method)]
            same = [j for j in found if j.recipe == recipe]
            if same or found:
                yield min(same or found, key=lambda j: j.seed)

    def rows(self) -> list[Row]:
        """Every row of every run's results, with what it is of."""
        found = []
        for job in self.done:
            for row in self.results(job).predictions:
                found.append({**_about(job), **row})
        return found

    def layer_rows(self, network: str = "trained") -> list[Row]:
        found = []
        for job in self.done:
            found += [{**_about(job), **row} for row in self.results(job).layers if row["network"] == network]
        return found

    def timings(self) -> list[Row]:
        return [{**_about(job), **self.results(job).timing} for job in self.done]

    def authors(self, kind: str) -> list[Row]:
        """Rows of the authors' objective; ``kind``: predictions or layers."""
        if self.settings.authors is None:
            return []
        path = self.settings.authors / f"authors_{kind}.csv"
        return [{**row, "source": "authors"} for row in read_rows(path)] if path.exists() else []

    def draws(
        self, network: nn.Module, prediction: Prediction, x: Tensor, dataset: Dataset, samples: int
    ) -> Tensor:
        """Class probabilities [draws, n, classes]."""
        with warnings.catch_warnings():
            # The tables say which median models had no path.
            warnings.simplefilter("ignore", UserWarning)
            p = predict(
                network, x, mode=prediction.mode, samples=samples, average=False,
                threshold=resolve_threshold(network),
                likelihood=dataset.likelihood,
                generator=torch.Generator().manual_seed(self.settings.first_seed),
            )  # fmt: skip
        return class_probabilities(p)


def _about(job: Job) -> dict[str, Any]:
    return {
        "dataset": job.dataset_name,
        "method": job.method,
        "source": source_of(job.recipe),
        "recipe": job.recipe,
        "seed": job.seed,
        **({} if job.width is None else {"width": job.width}),
        **({} if job.density is None else {"pruned_to": job.density}),
    }


def full_prediction(method: str) -> Prediction:
    """The prediction that averages over all that the method is unsure of."""
    return find_method(method).predictions[0]


def sparse_prediction(method: str) -> Prediction | None:
    """The sampled prediction of the method's own sparse model, where it has one."""
    sparse = [p for p in find_method(method).predictions if p.gamma in ("MED", "PRN") and p.beta == "SIM"]
    return sparse[0] if sparse else None
