"""Which runs an experiment needs, and where they lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .experiments import Experiment
from .store import ResultStore, recipe_hash

#: Hidden units per unit of the width factor B: the paper's width study.
WIDTH_UNITS = (40, 60)


@dataclass(frozen=True)
class Settings:
    """How an experiment is run."""

    out: Path
    runs: int
    recipes: tuple[str, ...] = ("paper",)
    #: Only these of the experiment's methods, data sets and widths; empty: all.
    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    #: Processes at a time, and CPU threads for all of them together.
    jobs: int = 1
    threads: int = 1
    #: Instead of the recipe's number for the main stage.
    epochs: int | None = None
    first_seed: int = 0
    #: Draws that tables average, and draws for figures of single predictions.
    samples: int = 10
    figure_samples: int = 100
    root: str | None = None
    #: Folder with the results of the authors' objective: authors_predictions.csv, authors_layers.csv.
    authors: Path | None = None
    #: Folder of the tidy tables of results; None: ``out``.
    results: Path | None = None
    #: Seconds to measure epoch times for, per run.
    timing_seconds: float = 3.0
    progress: bool | None = None


@dataclass(frozen=True)
class Job:
    """One run."""

    dataset: str
    method: str
    recipe: str
    seed: int
    folder: str
    #: The folder of all runs, which it lies in.
    runs_folder: str
    width: int | None = None
    density: float | None = None
    epochs: int | None = None
    samples: int = 10
    root: str | None = None
    timing_seconds: float = 3.0
    #: Whether the trained network is wanted, and not only its results.
    needs_network: bool = False

    @property
    def run(self) -> str:
        """The key of its results: its folder below the folder of all runs."""
        return Path(self.folder).relative_to(self.runs_folder).as_posix()

    @property
    def dataset_name(self) -> str:
        return dataset_label(self.dataset)

    def describe(self) -> str:
        width = "" if self.width is None else f", width {self.width}"
        density = "" if self.density is None else f", density {self.density:g}"
        return f"{self.method} on {self.dataset_name}, {self.recipe} recipe{width}{density}, seed {self.seed}"

    def recipe_object(self) -> Any:
        from ..runs import find_recipe
        from ..runs.recipes import pruned_recipe

        if self.density is None:
            recipe = find_recipe(self.method, self.recipe)
        else:
            recipe = pruned_recipe(self.density)
        if self.epochs is not None:
            recipe = recipe.scaled(self.epochs)
        if self.width is not None:
            recipe = replace(recipe, hidden=tuple(units * self.width for units in WIDTH_UNITS))
        return recipe

    def is_done(self, store: ResultStore) -> bool:
        """Trained by this recipe, evaluated with the same number of draws, and timed.

        A run of which the store has the results is done where these are enough.
        """
        return self.has_folder() or (not self.needs_network and self._is_stored(store))

    def _is_stored(self, store: ResultStore) -> bool:
        stored = store.get(self.run)
        if stored is None or stored.samples != self.samples:
            return False
        # A recipe that this version has no more was run by another, and stays what it was.
        return not self.has_recipe() or recipe_hash(stored.recipe) == recipe_hash(self._recipe_config())

    def has_recipe(self) -> bool:
        from ..runs import recipes_of

        return self.density is not None or self.recipe in recipes_of(self.method)

    def _recipe_config(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.recipe_object().on(self.dataset_name).to_config()))

    def has_folder(self) -> bool:
        """Whether the run's folder has all that is wanted of it."""
        from ..runs.recipe import same_config

        folder = Path(self.folder)
        config, results = _json(folder / "run.json"), _json(folder / "results.json")
        return (
            config is not None and config.get("status") == "finished"
            and self.has_recipe() and same_config(config["recipe"], self._recipe_config())
            and results is not None and results.get("samples") == self.samples
            and (folder / "timing.json").exists()
            and not (self.needs_network and self.lacks_network())
        )  # fmt: skip

    def lacks_network(self) -> bool:
        return not (Path(self.folder) / "trained.safetensors").exists()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def dataset_label(dataset: str) -> str:
    """A short name for folders and tables: a name as it is, a path without folders and endings."""
    return Path(dataset).name.split(".")[0]


def plan(experiment: Experiment, settings: Settings, store: ResultStore | None = None) -> list[Job]:
    """All runs of the experiment; those of one seed together, so that early results are of everything.

    Runs of the ``store`` by recipes that this version has no more are among them.
    """
    from ..runs.methods import METHODS

    kept = {(stored.about["method"], stored.about["recipe"]) for stored in (store or {}).values()}

    # Methods of the project that the experiment leaves out may be added.
    methods = _chosen("method", settings.methods, (*experiment.methods, *METHODS)) or experiment.methods
    datasets = _chosen("data set", settings.datasets, experiment.datasets) or experiment.datasets
    widths = _chosen("width", settings.widths, experiment.widths) or experiment.widths or (None,)
    return [
        Job(
            dataset, method, recipe, seed,
            str(_folder(settings, dataset, method, recipe, width, density, seed)), str(settings.out / "runs"),
            width, density, settings.epochs, settings.samples, settings.root, settings.timing_seconds,
            experiment.needs_networks,
        )
        for seed in range(settings.first_seed, settings.first_seed + settings.runs)
        for dataset in datasets
        for method in methods
        for recipe in chosen_recipes(method, settings.recipes, {name for m, name in kept if m == method})
        for width in widths
        for density in (experiment.densities.get(dataset, (None,)) if method == "FNN-GMP" else (None,))
    ]  # fmt: skip


def chosen_recipes(method: str, asked: tuple[str, ...], stored: set[str] | None = None) -> tuple[str, ...]:
    """Those of the asked recipes that the method has, or had when results of it were ``stored``.

    If it has none of them, the one that it has.
    """
    from ..runs import recipes_of

    known = list(recipes_of(method))
    known += sorted((stored or set()) - set(known))
    return tuple(name for name in asked if name in known) or tuple(known[:1])


def _chosen(what: str, asked: tuple[Any, ...], known: tuple[Any, ...]) -> tuple[Any, ...]:
    foreign = [str(name) for name in asked if name not in known]
    if foreign:
        expected = ", ".join(dict.fromkeys(map(str, known))) or "none"
        raise ValueError(f"no {what} {', '.join(foreign)} in this experiment; expected some of {expected}")
    return asked


def _folder(
    settings: Settings,
    dataset: str,
    method: str,
    recipe: str,
    width: int | None,
    density: float | None,
    seed: int,
) -> Path:
    """DIR/runs/<dataset>/<method>/<recipe>/[width-<B>/ or density-<d>/]seed-<i>"""
    name = recipe if settings.epochs is None else f"{recipe}-{settings.epochs}-epochs"
    folder = settings.out / "runs" / dataset_label(dataset) / method / name
    if width is not None:
        folder /= f"width-{width}"
    if density is not None:
        folder /= f"density-{density:g}"
    return folder / f"seed-{seed}"
