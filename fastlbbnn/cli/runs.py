"""train and evaluate: run folders and the figures of their networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import app, interruptible, print_json, table, use_threads, wrong_call
from .options import DataOption, Json, Root, RunFolder, Samples, Seed, Threads, optional


def _share(value: float) -> str:
    """Four digits after the point; of small shares two that count."""
    return f"{value:.4f}" if value >= 0.01 else f"{value:.2g}"


#: Columns of the table of predictions: key of a row -> heading and how a value is written.
COLUMNS = {
    "stage": ("network", str),
    "gamma": ("gamma", str),
    "beta": ("beta", str),
    "R": ("R", str),
    "accuracy": ("accuracy", "{:.4f}".format),
    "accuracy_at_095": ("acc. >= 0.95", "{:.4f}".format),
    "classified_at_095": ("decided", str),
    "rmse": ("RMSE", "{:.4g}".format),
    "nll": ("NLL", "{:.4f}".format),
    "ece": ("ECE", "{:.4f}".format),
    "coverage": ("coverage", "{:.3f}".format),
    "density": ("density", _share),
    "threshold": ("threshold", "{:.4g}".format),
}

#: Root mean square of a feature above which the priors and step sizes, made for inputs of size 1, may fail.
LARGE_FEATURE = 10.0

#: What the paper's names mean.
LEGEND = (
    "gamma: SIM indicators drawn, ALL all weights, MED median model, PRN pruned.  "
    "beta: SIM weights drawn, MEA posterior means.  R: draws averaged."
)


def run_table(results: dict[str, Any]) -> str:
    """The rows; thresholds only where a median model needed another one than 0.5, and then why."""
    from ..runs.evaluate import no_path_note

    note = no_path_note(results["rows"])
    columns = {key: how for key, how in COLUMNS.items() if key != "threshold" or note}
    return table(results["rows"], columns) + ("" if note is None else f"\n\n{note}")


@app.command(short_help="Train a network by a recipe.")
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist, fmnist, phoneme, or a .csv, .csv.gz or .npz file.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", "-m", help="By the paper's name; `--method list` shows all.")
    ] = "LBBNN-GP-MF",
    recipe: Annotated[
        str | None,
        optional(
            "--recipe",
            help="paper: the paper's settings. ours: on to the bound's optimum (LBBNN: the fewest weights); "
            "the default where there is one. gentle: near the paper's settings. early: the structure of the "
            "first epochs, held (Concrete dropout: rates that are given; mixture prior: shorter). "
            "`--recipe list` says what each does with the method.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        optional("--out", "-o", metavar="RUN", help="Run folder; by default runs/DATA-METHOD-RECIPE-SEED."),
    ] = None,
    epochs: Annotated[
        int | None,
        optional(min=1, metavar="N", help="End the main stage after N epochs, the others in proportion."),
    ] = None,
    hidden: Annotated[
        str | None,
        optional(metavar="SIZES", help="Hidden units, e.g. 400-600; by default the recipe's."),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start again from nothing.")] = False,
    evaluate_too: Annotated[
        bool, typer.Option("--evaluate/--no-evaluate", help="Evaluate the trained networks at the end.")
    ] = True,
    samples: Samples = 10,
    target: Annotated[
        str | None,
        optional(metavar="COLUMN", help="Of a CSV file: what to predict; by default the last."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        optional(metavar="COLUMN", help="Of a CSV file: no feature; may be repeated."),
    ] = None,
    likelihood: Annotated[
        str | None,
        optional(
            help="Of a file: categorical (by default for text, and for whole numbers of at most 20 "
            "different values), gaussian (for all other numbers), bernoulli or poisson (counts)."
        ),
    ] = None,
    no_header: Annotated[
        bool, typer.Option("--no-header", help="Of a CSV file without names: columns are called 1, 2, ...")
    ] = False,
    delimiter: Annotated[
        str | None, optional(metavar="CHAR", help="Of a CSV file: what stands between values, if no comma.")
    ] = None,
    test_share: Annotated[
        float | None,
        optional(metavar="SHARE", help="Of digits or a file: rows to test on; by default a fifth."),
    ] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Of a file: features to mean 0 and deviation 1.")
    ] = False,
    raw_target: Annotated[
        bool,
        typer.Option(
            "--raw-target", help="Of a file of numbers: train on the target as it is, not shifted and scaled."
        ),
    ] = False,
    validation: Annotated[
        float | None,
        optional(
            metavar="SHARE", help="Evaluate on this share of the training rows instead of the test rows."
        ),
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Of the split into training and test rows.")] = 0,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train a network by a recipe, into a run folder.

    \b
        fastlbbnn train digits
        fastlbbnn train phoneme --method LBBNN-GP-MVN --out runs/mvn --seed 3
        fastlbbnn train patients.csv --target outcome --standardise --hidden 50-50

    An interrupted run continues where it stopped when the same command is given again, with the numbers
    that it would have had without the interruption. A finished run is left as it is.
    """
    from ..data.source import Source, check_same_data, remember
    from ..inference.likelihoods import LIKELIHOODS
    from ..runs import RECIPES, find_recipe, load_run
    from ..runs import train as train_run
    from ..runs.methods import METHODS, find_method

    if method == "list":
        typer.echo("\n".join(f"{m.name:<16} {m.summary}" for m in METHODS.values()))
        raise typer.Exit()
    if recipe == "list":
        with wrong_call("--method"):
            method = find_method(method).name
        for (of, name), found in RECIPES.items():
            if of == method:
                typer.echo(f"{name}: {found.notes or 'The settings of the paper.'}\n")
        raise typer.Exit()
    if data is None:
        raise typer.BadParameter(
            "missing; expected digits, mnist, fmnist, phoneme or a file", param_hint="DATA"
        )
    with wrong_call("--method"):
        method = find_method(method).name
    with wrong_call("--recipe"):
        chosen = find_recipe(method, recipe)
    chosen_name = chosen.name
    if epochs is not None:
        chosen = chosen.scaled(epochs)
    if hidden is not None:
        chosen = replace(chosen, hidden=_hidden_sizes(hidden))
    for option, share in (("--validation", validation), ("--test-share", test_share)):
        if share is not None and not 0.0 < share < 1.0:
            raise typer.BadParameter(f"{share}: expected a share between 0 and 1", param_hint=option)
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if delimiter is not None and len(delimiter) != 1:
        raise typer.BadParameter(
            f"{delimiter!r}: expected one character, or \\t for a tab", param_hint="--delimiter"
        )
    if likelihood is not None and likelihood not in LIKELIHOODS:
        raise typer.BadParameter(
            f"{likelihood!r}: expected one of {', '.join(LIKELIHOODS)}", param_hint="--likelihood"
        )

    options = {
        "target": target,
        "ignore": ignore or None,
        "likelihood": likelihood,
        "standardise": standardise or None,
        "header": False if no_header else None,
        "delimiter": delimiter,
        "test_share": test_share,
        "scale_target": False if raw_target else None,
    }
    options = {k: v for k, v in options.items() if v is not None}
    source = Source.of(data, root=root, seed=data_seed, options=options, validation=validation)
    use_threads(threads)
    try:
        dataset = source.load()
    except TypeError as error:  # an option that these data do not have
        raise typer.BadParameter(str(error)) from error
    folder = out if out is not None else Path("runs") / f"{dataset.name}-{method}-{chosen_name}-{seed}"
    if not as_json:
        typer.echo(f"{method} on {dataset!r}", err=True)
    for note in _notes(dataset):
        typer.echo(f"note: {note}", err=True)
    if restart or not (folder / "run.json").exists():
        remember(folder, source, dataset)
    else:
        check_same_data(folder, source)
    with interruptible("the same command again continues from the last checkpoint"):
        train_run(
            method,
            dataset,
            chosen,
            seed=seed,
            out=folder,
            resume=not restart,
            progress=False if as_json else None,
        )
        run = load_run(folder)
        results = _evaluated(run, dataset, samples) if evaluate_too else None
    if as_json:
        print_json({"run": str(folder), "config": run.config, "results": results})
        return
    typer.echo(f"trained in {run.config['seconds']:.1f} s: {folder}")
    if results is not None:
        typer.echo(f"\n{results['n_test']} {dataset.held_out} rows:\n")
        typer.echo(f"{run_table(results)}\n\n{LEGEND}")
    typer.echo(f"\nNext: fastlbbnn report {folder}")


def _notes(dataset: Any) -> list[str]:
    """What a network of these data may fail by."""
    notes = []
    size = dataset.x_train.square().mean(0).sqrt()
    largest = int(size.argmax())
    if size[largest] > LARGE_FEATURE:
        name = f"input {largest}" if dataset.input_names is None else repr(dataset.input_names[largest])
        notes.append(
            f"values of {name} are of the size {size[largest]:.3g}; priors and step sizes are made for "
            "features of size 1: --standardise makes them so"
        )
    if dataset.n_classes is not None:
        unseen = sorted(set(dataset.y_test.int().tolist()) - set(dataset.y_train.int().tolist()))
        names = [str(c) if dataset.class_names is None else dataset.class_names[c] for c in unseen]
        if names:
            notes.append(
                f"no training row has the class {', '.join(names)}, but {dataset.held_out} rows do: a "
                "network cannot learn what it never sees"
            )
    return notes


def _hidden_sizes(text: str) -> tuple[int, ...]:
    """``"400-600"`` -> (400, 600)."""
    parts = text.split("-")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(
            f"{text!r}: expected units of the hidden layers such as 400-600, or 50 for one layer",
            param_hint="--hidden",
        )
    return tuple(int(part) for part in parts)


def _evaluated(run: Any, dataset: Any, samples: int) -> dict[str, Any]:
    """The results on file, if they are of as many draws; else evaluated now."""
    from ..runs.evaluate import evaluate_run

    known = run.results
    if known is not None and known.get("samples") == samples:
        return known
    return evaluate_run(run, dataset, samples=samples)


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
    from ..data.source import dataset_of
    from ..runs import load_run
    from ..runs.evaluate import evaluate_run

    use_threads(threads)
    run = load_run(folder)
    if not run.stages:
        raise ValueError(f"{folder} has no trained network yet; continue it with `fastlbbnn train`")
    dataset = dataset_of(run, data, root)
    results = evaluate_run(run, dataset, samples=samples, seed=seed)
    if as_json:
        print_json(results)
        return
    typer.echo(
        f"{run.config['method']} on {dataset.name}, seed {run.config['seed']}: {results['n_test']} "
        f"{dataset.held_out} rows\n"
    )
    typer.echo(f"{run_table(results)}\n\n{LEGEND}")
