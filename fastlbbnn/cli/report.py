"""report: one page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app, print_json, use_threads, warn_loudly
from .options import DataOption, Json, Root, RunFolder, Seed, Threads, optional

#: Which data of another domain a report shows beside a run's own, where they are on disk.
_OTHER = {"mnist": "fmnist", "fmnist": "mnist"}


@app.command(short_help="Write one HTML page about a run.")
def report(
    folder: RunFolder,
    out: Annotated[
        Path | None,
        optional("--out", "-o", metavar="FILE", help="Page to write; by default RUN/report.html."),
    ] = None,
    other: Annotated[
        str | None,
        optional(
            "--other",
            metavar="DATA",
            help="Data of another domain; for mnist and fmnist the other one, where it is on disk.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-R", min=1, help="Draws for figures.")] = 100,
    seed: Seed = 0,
    threads: Threads = None,
    data: DataOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page about a run.

    \b
        fastlbbnn report runs/digits
        fastlbbnn report runs/mnist --other fmnist -o mnist.html

    Training curves, all predictions, inclusion probabilities, which inputs are used, calibration, wrong
    and doubtful predictions, data of another domain, settings and versions. The page loads nothing.
    """
    from ..reports import need_extras

    need_extras()
    from ..data import available, load
    from ..reports import write_report
    from ..runs import load_run
    from ..runs.baseline import constant_warnings
    from ..runs.data import dataset_of

    use_threads(threads)
    run = load_run(folder)
    if not run.networks:
        raise ValueError(f"{folder} has no trained network yet; continue it with `fastlbbnn train`")
    dataset = dataset_of(run, data, root)
    name = other or _OTHER.get(dataset.name)
    if other is None and name is not None and name not in available(root):
        name = None
    foreign = None if name is None else load(name, root=root)
    if foreign is not None and foreign.inputs != dataset.inputs:
        raise ValueError(
            f"{foreign.name} has {foreign.inputs} inputs and {dataset.name} {dataset.inputs}; expected the "
            "same number"
        )
    path = out if out is not None else folder / "report.html"
    written = write_report(run, dataset, path, other=foreign, samples=samples, seed=seed)
    warnings = constant_warnings(run.results, dataset.held_out) if run.results is not None else []
    if as_json:
        print_json({"report": str(written), "bytes": written.stat().st_size, "warnings": warnings})
        return
    typer.echo(f"wrote {written} ({written.stat().st_size / 1e6:.1f} MB)")
    warn_loudly(warnings)
