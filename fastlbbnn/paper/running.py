"""Runs are trained, evaluated and timed, several at a time; what is done already is left as it is."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .._util.files import write_json
from ..data import Dataset, load
from ..machine import timing
from ..machine.describe import in_words
from ..runs import Run, load_run, train
from ..runs.evaluate import evaluate_run
from .jobs import Job, Settings
from .store import ResultStore

#: What a worker said, in its run folder.
LOG = "log.txt"


class RunsFailed(ValueError):
    """Some runs failed; the others are done."""


def load_data(name: str, root: str | None) -> Dataset:
    return load(name, root=root)


def perform(job: Job, dataset: Dataset, progress: bool | None) -> None:
    """Train or continue one run, evaluate and time it; steps that are done are skipped.

    A finished run whose networks are gone is trained again if more than its results is wanted.
    """
    folder = Path(job.folder)
    gone = (folder / "run.json").exists() and load_run(folder).finished and job.lacks_network()
    recipe = job.recipe_object()
    train(job.method, dataset, recipe, seed=job.seed, out=folder, resume=not gone, progress=progress)
    run = load_run(folder)
    if run.results is None or run.results.get("samples") != job.samples:
        evaluate_run(run, dataset, samples=job.samples)
    if not (folder / "timing.json").exists():
        write_json(folder / "timing.json", measure(run, dataset, job.timing_seconds))


def measure(run: Run, dataset: Dataset, seconds: float) -> dict[str, Any]:
    """Seconds per epoch of the main stage and of a plain network of the same sizes, taking turns.

    Both train on the same batch with as many threads at the same time of day, so that their ratio does not
    depend on what else the machine did while the run was trained.
    """
    recipe = run.recipe
    stage = next(s for s in recipe.stages if s.saves == "trained")
    rows = slice(0, min(recipe.batch, dataset.n_train))
    x, y = dataset.x_train[rows], dataset.y_train[rows]
    steps = -(-dataset.n_train // recipe.batch)
    step = partial(timing.training_step, n_data=dataset.n_train, likelihood=dataset.likelihood)
    plain = step(timing.plain_network(run.config["sizes"]), x, y)
    own = step(
        run.model("trained"), x, y, step_sizes=stage.step_sizes, mode=stage.mode, samples=recipe.samples
    )
    steps_to_time = {"plain": plain} if run.config["method"] == "FNN" else {"plain": plain, "own": own}
    times = timing.interleave(steps_to_time, seconds=seconds)
    times.setdefault("own", times["plain"])  # the plain network itself
    return {
        "epoch_seconds": steps * statistics.median(times["own"]),
        "fnn_epoch_seconds": steps * statistics.median(times["plain"]),
        "ratio": timing.ratio(times["own"], times["plain"]),
        "rounds": len(times["own"]),
        "threads": torch.get_num_threads(),
        "machine": in_words(),
    }


def run_jobs(jobs: Sequence[Job], settings: Settings, store: ResultStore) -> None:
    """Do what is not done. Failed runs do not stop the others; RunsFailed names them at the end."""
    todo = [job for job in jobs if not job.is_done(store)]
    hidden = None if settings.progress is None else not settings.progress
    with tqdm(total=len(jobs), initial=len(jobs) - len(todo), unit="run", desc="runs", disable=hidden) as bar:
        if not todo:
            return
        failures = (
            _one_by_one(todo, settings, bar) if settings.jobs == 1 else _in_processes(todo, settings, bar)
        )
    if failures:
        lines = "\n".join(f"  {job.describe()}: {reason}" for job, reason in failures.items())
        raise RunsFailed(f"{len(failures)} of {len(todo)} runs failed:\n{lines}")


def _one_by_one(todo: Sequence[Job], settings: Settings, bar: tqdm) -> dict[Job, str]:
    torch.set_num_threads(settings.threads)
    data: dict[str, Dataset] = {}
    failures: dict[Job, str] = {}
    for job in todo:
        if job.dataset not in data:
            data = {job.dataset: load_data(job.dataset, job.root)}
        try:
            perform(job, data[job.dataset], settings.progress)
        except ValueError as error:  # of this run, such as a loss that is not finite
            failures[job] = str(error)
        bar.update()
    return failures


def _in_processes(todo: Sequence[Job], settings: Settings, bar: tqdm) -> dict[Job, str]:
    waiting = list(todo)
    running: dict[Job, subprocess.Popen] = {}
    failures: dict[Job, str] = {}
    threads = max(1, settings.threads // settings.jobs)
    # Ended from outside, it ends its workers, too.
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _stop) if main else None
    try:
        while waiting or running:
            while waiting and len(running) < settings.jobs:
                job = waiting.pop(0)
                running[job] = _start(job, threads)
            for job in [job for job, process in running.items() if process.poll() is not None]:
                if running.pop(job).returncode != 0:
                    failures[job] = _last_line(Path(job.folder) / LOG)
                bar.update()
            bar.set_postfix_str("; ".join(job.describe() for job in running))
            time.sleep(0.1)
    finally:
        # Only ours, one by one; a run that is ended here continues from its checkpoint next time.
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        if main:
            signal.signal(signal.SIGTERM, before)
    return failures


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def _start(job: Job, threads: int) -> subprocess.Popen:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "fastlbbnn.paper.worker", job.to_json(), str(threads)]
    with (folder / LOG).open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
    except OSError:
        lines = []
    return f"{lines[-1] if lines else 'it said nothing'} (all of it: {log})"
