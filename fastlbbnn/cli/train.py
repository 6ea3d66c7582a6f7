"""train: a network by a recipe, into a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated
from warnings import catch_warnings, simplefilter

import typer

from .app import app, interruptible, print_json, use_threads, warn_loudly, wrong_call
from .options import Json, Root, Samples, Seed, Threads, optional


@app.command(short_help="Train a network by a recipe.")
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist, fmnist, phoneme, or a .csv, .tsv (also .gz) or .npz file.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", "-m", help="Method, by the paper's name; `--method list` shows all.")
    ] = "LBBNN-GP-MF",
    recipe: Annotated[
        str | None,
        optional(
            "--recipe",
            help="How to train; `--recipe list` says what each of the method's recipes does.",
        ),
    ] = None,
    density: Annotated[
        float | None,
        optional(metavar="SHARE", help="Share of the weights to keep, e.g. 0.01; by default 0.02."),
    ] = None,
    weights: Annotated[int | None, optional(metavar="N", min=1, help="Number of weights to keep.")] = None,
    max_loss: Annotated[
        float | None,
        optional(
            metavar="LOSS",
            help="Keep as few weights as cost at most this much accuracy, found on a part of the training "
            "rows, e.g. 0.002 (numbers: growth of the RMSE).",
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
        optional(metavar="COLUMN", help="Table: column to predict; by default the last."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        optional(metavar="COLUMN", help="Table: column that is not a feature (repeatable)."),
    ] = None,
    likelihood: Annotated[
        str | None,
        optional(
            help="File: categorical (by default for text, and for whole numbers of at most 20 "
            "different values), gaussian (for all other numbers), bernoulli or poisson (counts)."
        ),
    ] = None,
    no_header: Annotated[
        bool, typer.Option("--no-header", help="Table: it has no header; columns are called 1, 2, ...")
    ] = False,
    delimiter: Annotated[
        str | None, optional(metavar="CHAR", help="Table: character between values; by default detected.")
    ] = None,
    test_share: Annotated[
        float | None,
        optional(metavar="SHARE", help="Share of the rows to test on; by default a fifth."),
    ] = None,
    standardise: Annotated[
        bool | None,
        optional(
            "--standardise/--raw-features",
            help="File: scale features to mean 0 and deviation 1; by default tables are, arrays are not.",
        ),
    ] = None,
    raw_target: Annotated[
        bool,
        typer.Option(
            "--raw-target", help="File: train on a numeric target as it is, neither shifted nor scaled."
        ),
    ] = False,
    validation: Annotated[
        float | None,
        optional(
            metavar="SHARE", help="Evaluate on this share of the training rows instead of the test rows."
        ),
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Seed of the split into training and test rows.")] = 0,
    root: Root = None,
    device: Annotated[str, typer.Option(help="Device to train on: cpu, cuda or cuda:N.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train a network by a recipe, into a run folder.

    \b
        fastlbbnn train digits --density 0.02
        fastlbbnn train wine.csv --target y --weights 200
        fastlbbnn train phoneme --method LBBNN-GP-MVN --out runs/mvn --seed 3
        fastlbbnn train patients.csv --target outcome --hidden 50-50

    An interrupted run continues where it stopped when the same command is given again, with the numbers
    that it would have had without the interruption. A finished run is left as it is.
    """
    from ..data import Source
    from ..inference.likelihoods import LIKELIHOODS
    from ..reports.summary import run_table, selected_sentence
    from ..runs import METHODS, find_method, find_recipe, recipes_of
    from ..runs import train as train_run
    from ..runs.baseline import constant_warnings
    from ..runs.notes import data_notes
    from ..runs.trainer import NotLearned, not_learned

    if method == "list":
        typer.echo("\n".join(f"{m.name:<16} {m.summary}" for m in METHODS.values()))
        raise typer.Exit()
    if recipe == "list":
        with wrong_call("--method"):
            method = find_method(method).name
        for name, found in recipes_of(method).items():
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
    if max_loss is not None and (density is not None or weights is not None):
        raise typer.BadParameter(
            f"{max_loss} beside --density or --weights; expected one of the three", param_hint="--max-loss"
        )
    if density is not None or weights is not None:
        with wrong_call("--density, --weights"):
            chosen = chosen.asking(density=density, weights=weights)
    if hidden is not None:
        chosen = replace(chosen, hidden=hidden_sizes(hidden))
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
        "standardise": standardise,
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
    for note in data_notes(dataset):
        typer.echo(f"note: {note}", err=True)
    with interruptible("the same command again continues from the last checkpoint"), catch_warnings():
        simplefilter("ignore", NotLearned)  # said below, loudly
        run = train_run(
            method, dataset, chosen, seed=seed, out=folder, max_loss=max_loss, resume=not restart,
            evaluate=samples if evaluate_too else None, device=device_here(device),
            progress=False if as_json else None,
        )  # fmt: skip
    results = run.results if evaluate_too else None
    trouble = not_learned(run)
    warnings = [] if trouble is None else [trouble]
    if results is not None:
        warnings += constant_warnings(results, dataset.held_out)
    if as_json:
        print_json({"run": str(folder), "config": run.config, "results": results, "warnings": warnings})
        return
    typer.echo(f"trained in {run.config['seconds']:.1f} s: {folder}")
    if results is not None:
        typer.echo(f"\n{results['n_test']} {dataset.held_out} rows:\n\n{run_table(results)}")
        selected = selected_sentence(results)
        if selected is not None:
            typer.echo(f"\n{selected}")
    warn_loudly(warnings)
    typer.echo(f"\nNext: fastlbbnn report {folder}")


def device_here(name: str) -> str:
    """A device that torch has here."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        message = f"{name}: {reason}; expected cpu, cuda or cuda:N"
        raise typer.BadParameter(message, param_hint="--device") from error
    return name


def hidden_sizes(text: str) -> tuple[int, ...]:
    """``"400-600"`` -> (400, 600)."""
    parts = text.split("-")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(
            f"{text!r}: expected units of the hidden layers such as 400-600, or 50 for one layer",
            param_hint="--hidden",
        )
    return tuple(int(part) for part in parts)
