"""The paper's tables and figures, regenerated: what is missing is trained, then everything is drawn.

    from fastlbbnn.paper import Settings, reproduce
    reproduce("phoneme", Settings(out=Path("results"), runs=3, jobs=2, threads=2))

Runs lie in ``out/runs``; an interrupted call continues where it stopped. Written are a page
``out/<experiment>.md``, its CSV files and figures in ``out/<experiment>/``, and the results of all runs
as tidy tables in ``out`` (``store``). A run that these tables have is done, also where its folder is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .experiments import EXPERIMENTS, Experiment, find_experiment
from .jobs import Job, Settings, plan
from .store import ResultStore

if TYPE_CHECKING:
    from .context import Part

__all__ = [
    "EXPERIMENTS", "Experiment", "Job", "ResultStore", "Settings", "find_experiment", "plan", "reproduce",
]


def reproduce(
    experiment: str | Experiment, settings: Settings, *, train: bool = True, pictures: bool = True
) -> list[Path]:
    """Train what is missing, then write tables and figures; returns the files, the page first.

    ``train=False``: tables and figures of the runs that are there; ``pictures=False``: tables alone.
    """
    from .context import Context
    from .outputs import make
    from .running import RunsFailed, run_jobs

    if isinstance(experiment, str):
        experiment = find_experiment(experiment)
    results = settings.results or settings.out
    store = ResultStore.read(results)
    jobs = plan(experiment, settings, store)
    failed = None
    if train:
        try:
            run_jobs(jobs, settings, store)
        except RunsFailed as error:
            failed = error
    context = Context(experiment, settings, jobs, store, pictures)
    if failed is not None and not context.done:
        raise failed
    parts = make(context)
    page = _write_page(experiment, settings, len(context.done), len(jobs), parts)
    if train:
        for job in context.done:
            context.results(job)
        store.write(results)
    if failed is not None:
        raise failed
    return [page, *(path for part in parts for path in part.files)]


def _write_page(
    experiment: Experiment, settings: Settings, done: int, wanted: int, parts: list[Part]
) -> Path:
    from .._util.files import replace_file
    from ..machine.describe import versions

    about = versions()
    *others, last = settings.recipes
    recipes = f"{', '.join(others)} and {last}" if others else last
    epochs = (
        "" if settings.epochs is None else f", main stage of {settings.epochs} epochs instead of the recipe's"
    )
    page = [
        f"# {experiment.title}\n",
        f"The paper's {experiment.source}. Made by `fastlbbnn reproduce {experiment.name}`: {done} of "
        f"{wanted} runs, {'' if done == wanted else 'at most '}{settings.runs} per method, recipe "
        f"{recipes}{epochs}; "
        f"fastlbbnn {about['fastlbbnn']}, torch {about['torch']}.\n",
    ]
    page += [f"## {part.title}\n\n{part.text}" for part in parts]
    path = settings.out / f"{experiment.name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text("\n".join(page), encoding="utf-8")
    return path
