"""evaluate: the figures of a run's networks."""

from __future__ import annotations

import typer

from .app import app, print_json, use_threads, warn_loudly
from .options import DataOption, Json, Root, RunFolder, Samples, Seed, Threads


@app.command(short_help="Evaluate a run's networks on its test data.")
def evaluate(
    folder: RunFolder,
    samples: Samples = 10,
    seed: Seed = 0,
    threads: Threads = None,
    data: DataOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Evaluate every network of a run on its test data, in every way to predict.

    \b
        fastlbbnn evaluate runs/digits
        fastlbbnn evaluate runs/digits --samples 100 --json > results.json

    Writes results.json into the run folder and shows it as a table: the rows of the paper's tables.
    """
    from ..reports.summary import run_table
    from ..runs import load_run
    from ..runs.baseline import constant_warnings
    from ..runs.data import dataset_of
    from ..runs.evaluate import evaluate_run

    use_threads(threads)
    run = load_run(folder)
    if not run.networks:
        raise ValueError(f"{folder} has no trained network yet; continue it with `fastlbbnn train`")
    dataset = dataset_of(run, data, root)
    results = evaluate_run(run, dataset, samples=samples, seed=seed)
    warnings = constant_warnings(results, dataset.held_out)
    if as_json:
        print_json({**results, "warnings": warnings})
        return
    typer.echo(
        f"{run.config['method']} on {dataset.name}, seed {run.config['seed']}: {results['n_test']} "
        f"{dataset.held_out} rows\n"
    )
    typer.echo(run_table(results))
    warn_loudly(warnings)
