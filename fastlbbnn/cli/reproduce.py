"""reproduce: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..paper.experiments import EXPERIMENTS
from .app import app, interruptible, print_json, wrong_call
from .options import Json, Root, optional


@app.command(short_help="Regenerate the paper's tables and figures.")
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help=f"One of {', '.join(EXPERIMENTS)}.", show_default=False
        ),
    ],
    runs: Annotated[
        int | None,
        optional(min=1, help="Runs per method, with seeds 0, 1, ...; by default the experiment's."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each in its own process.")] = 1,
    methods: Annotated[
        list[str] | None,
        optional("--methods", metavar="NAME", help="Only these methods (repeatable, or a,b,c)."),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        optional("--datasets", metavar="DATA", help="Only these of the experiment's data sets."),
    ] = None,
    widths: Annotated[
        list[str] | None,
        optional("--widths", metavar="B", help="Only these width factors (widths)."),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="A recipe's name, several a,b, both (paper and ours) or all; `fastlbbnn train --method NAME "
            "--recipe list` says what there is."
        ),
    ] = "paper",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Tables and figures, and DIR/runs.")
    ] = Path("results"),
    authors: Annotated[
        Path | None,
        optional(
            metavar="DIR",
            help="Folder of authors_predictions.csv and authors_layers.csv, results of the authors' "
            "objective, for a column of their own; by default OUT, where these are in it.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        optional(min=1, metavar="N", help="Epochs instead of the recipe's, to try things."),
    ] = None,
    threads: Annotated[
        int | None,
        optional(min=1, help="CPU threads of all jobs together; by default all."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-R", min=1, help="Draws to average in tables.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    only_tables: Annotated[
        bool,
        typer.Option("--only-tables", help="Make tables of the results that are there; train and draw nothing."),
    ] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Regenerate a table or figure of the paper, ours beside the paper's.

    \b
        fastlbbnn reproduce phoneme --runs 10 --jobs 2
        fastlbbnn reproduce mnist --methods LBBNN-GP-MF,BNN-GP-MF --recipe both
        fastlbbnn reproduce ood --epochs 10 --out runs/try

    \b
    mnist, fmnist, phoneme   predictions, inclusion probabilities, epoch times, histograms
    posttrain, fixed-priors  predictions after post-training; with fixed priors
    fnn                      the frequentist network, pruned after and during training
    ood, misclassified       uncertainty out of domain and where the network is wrong
    widths, samples          networks of other widths; accuracy against the number of samples
    correlations             of indicators, for the three structure families

    Trains what is missing into DIR/runs, which all experiments share, and writes DIR/EXPERIMENT.md with its
    CSV files and figures. Interrupted, the same call continues where it stopped. Tables are made of the runs'
    results: their networks (*.safetensors) may be deleted, and are trained again where a figure needs them.
    """
    import os

    from ..paper import Settings, find_experiment, plan
    from ..paper import reproduce as run_experiment
    from ..runs import RECIPES, find_method

    with wrong_call("EXPERIMENT"):
        chosen = find_experiment(experiment)
    known = tuple(dict.fromkeys(found.name for found in RECIPES.values()))
    recipes = {"both": ("paper", "ours"), "all": known}.get(recipe, tuple(_split([recipe])))
    if not recipes or not set(recipes) <= set(known):
        expected = f"{', '.join(known)}, several of them a,b, both or all"
        raise typer.BadParameter(f"{recipe!r}; expected {expected}", param_hint="--recipe")
    if authors is not None and not authors.is_dir():
        raise typer.BadParameter(f"{authors} is not a folder", param_hint="--authors")
    if authors is None and (out / "authors_predictions.csv").exists():
        authors = out
    with wrong_call("--methods"):
        names = tuple(find_method(name).name for name in _split(methods))
    with wrong_call("--widths"):
        factors = tuple(int(text) for text in _split(widths))
    settings = Settings(
        out=out, runs=runs or chosen.runs, recipes=recipes, methods=names,
        datasets=tuple(_split(datasets)), widths=factors, jobs=jobs, threads=threads or os.cpu_count() or 1,
        epochs=epochs, first_seed=seed, samples=samples, root=root, authors=authors,
        progress=False if as_json else None,
    )  # fmt: skip
    with wrong_call():
        plan(chosen, settings)
    with interruptible("the same call again continues where it stopped"):
        written = run_experiment(chosen, settings, train=not only_tables, pictures=not only_tables)
    if as_json:
        print_json({"experiment": chosen.name, "files": [str(path) for path in written]})
    else:
        typer.echo("\n".join(f"wrote {path}" for path in written))


def _split(given: list[str] | None) -> list[str]:
    """``a,b`` and repeated options alike."""
    return [part for text in given or [] for part in text.split(",") if part]
