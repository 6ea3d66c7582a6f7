"""The paper's tables and figures, regenerated: what is missing is trained, then everything is drawn.

    from fastlbbnn.paper import Settings, reproduce
    reproduce("phoneme", Settings(out=Path("results"), runs=3, jobs=2, threads=2))

Runs lie in ``out/runs``; an interrupted call continues where it stopped. Written are a page
``out/<experiment>.md``, and its CSV files and figures in ``out/<experiment>/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .experiments import EXPERIMENTS, Experiment, find_experiment
from .jobs import Job, Settings, plan

if TYPE_CHECKING:
    from .context import Part

__all__ = ["EXPERIMENTS", "Experiment", "Job", "Settings", "find_experiment", "plan", "reproduce"]


def reproduce(experiment: str | Experiment, settings: Settings, *, train: bool = True) -> list[Path]:
    """Train what is missing, then write tables and figures; returns the files, the page first.

    ``train=False``: tables and figures of the runs that are there.
    """
    from .context import Context
    from .outputs import make
    from .running import RunsFailed, run_jobs

    if isinstance(experiment, str):
        experiment = find_experiment(experiment)
    jobs = plan(experiment, settings)
    failed = None
    if train:
        try:
            run_jobs(jobs, settings)
        except RunsFailed as error:
            failed = error
    context = Context(experiment, settings, jobs)
    if failed is not None and not context.done:
        raise failed
    parts = make(context)
    page = _write_page(experiment, settings, len(context.done), len(jobs), parts)
    if failed is not None:
        raise failed
    return [page, *(path for part in parts for path in part.files)]


def _write_page(
    experiment: Experiment, settings: Settings, done: int, wanted: int, parts: list[Part]
) -> Path:
    from .._util.files import replace_file
    from ..runs.run import versions

    about = versions()
    *others, last = settings.recipes
    recipes = f"{', '.join(others)} and {last}" if others else last
    epochs = (
        "" if settings.epochs is None else f", main stage of {settings.epochs} epochs instead of the recipe's"
    )
    page = [
        f"# {experiment.title}\n",
        f"The paper's {experiment.source}. Made by `fastlbbnn reproduce {experiment.name}`: {done} of "
        f"{wanted} runs, {'' if done == wanted else 'at most '}{settings.runs} a method, recipe "
        f"{recipes}{epochs}; "
        f"fastlbbnn {about['fastlbbnn']}, torch {about['torch']}.\n",
    ]
    page += [f"## {part.title}\n\n{part.text}" for part in parts]
    path = settings.out / f"{experiment.name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text("\n".join(page), encoding="utf-8")
    return path
