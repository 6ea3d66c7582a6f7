"""predict: what a run or a selected network says about new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import app, print_json, use_threads
from .options import Json, Network, Root, Seed, Threads, optional


@app.command(short_help="Predict, with uncertainty and doubts.")
def predict(
    folder: RunFolder,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="What to predict: a .csv or .npz file of inputs, or the test rows of a named set.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        optional("--out", "-o", metavar="FILE", help=".csv or .npz; by default CSV to the screen."),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="What stands in for the weights: sampled (model averaging), mean, median, median-mean."
        ),
    ] = "sampled",
    samples: Annotated[
        int | None,
        optional(
            "--samples", "-R", min=1,
            help="Draws to average (R in the paper); by default 10, for intervals, so for numbers, 100.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        optional(help="Inclusion probability above which the median modes keep a weight; by default 0.5."),
    ] = None,
    doubt: Annotated[
        float | None,
        optional(
            help="For classes: below this probability the decision is a doubt; 0: always decide. By default "
            "0.95.",
        ),
    ] = None,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals",
            help="For classes: a 95 % credible interval of each probability, over networks drawn. (Numbers "
            "always have intervals.)",
        ),
    ] = False,
    network: Network = "trained",
    seed: Seed = 0,
    threads: Threads = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Predict: class probabilities, their uncertainty, and a decision or a doubt a row.

    \b
        fastlbbnn predict runs/digits digits -o digits.csv
        fastlbbnn predict runs/patients new.csv --mode median-mean
        fastlbbnn predict runs/digits images.npz --samples 100 -o images.npz

    A CSV file needs the columns of features that the run was trained on, an .npz file an array x. Columns
    of the result: the probability of each class, confidence (the largest of them), entropy and mutual
    information (in nats; what the draws disagree on), and the decision; with --intervals also the ends of a
    95 % interval of each probability. For numbers instead of classes: their mean, a 95 % interval of a new
    observation and one of the mean.
    """
    from ..data.source import new_inputs, preparation_of
    from ..nn.modes import WeightMode
    from ..prediction import metrics
    from ..prediction import table as answers
    from ..runs import load_run
    from ..structure.paths import resolve_threshold

    modes = ("sampled", "mean", "median", "median-mean")
    if mode not in modes:
        raise typer.BadParameter(f"{mode!r}: expected {', '.join(modes)}", param_hint="--mode")
    chosen = WeightMode(mode)
    is_median = chosen in (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN)
    if threshold is not None:
        if not 0.0 <= threshold < 1.0:
            raise typer.BadParameter(
                f"{threshold}: expected a probability in [0, 1)", param_hint="--threshold"
            )
        if not is_median:
            raise typer.BadParameter(
                f"{threshold} with --mode {mode}: a threshold is for median and median-mean",
                param_hint="--threshold",
            )
    if samples is not None and not chosen.random:
        raise typer.BadParameter(
            f"{samples} with --mode {mode}, which draws nothing: expected sampled or median",
            param_hint="--samples",
        )
    if intervals and not chosen.random:
        raise typer.BadParameter(
            f"with --mode {mode}, which draws nothing: expected sampled or median", param_hint="--intervals"
        )
    if intervals and samples == 1:
        raise typer.BadParameter(
            "one draw has no interval: expected several --samples", param_hint="--intervals"
        )
    if doubt is not None and not 0.0 <= doubt <= 1.0:
        raise typer.BadParameter(f"{doubt}: expected a probability in [0, 1]", param_hint="--doubt")
    if out is not None and out.suffix not in (".csv", ".npz"):
        raise typer.BadParameter(f"{out.name}: expected a name that ends in .csv or .npz", param_hint="--out")
    use_threads(threads)
    run = load_run(folder)
    if is_median and not any(p.gamma in ("MED", "PRN") for p in run.method.predictions):
        raise typer.BadParameter(
            f"{mode}: {run.method.name} has no median model; expected sampled or mean", param_hint="--mode"
        )
    has_threshold = any(p.gamma == "MED" for p in run.method.predictions)
    if threshold is not None and not has_threshold:
        raise typer.BadParameter(
            f"{threshold}: {run.method.name} prunes by a rule of its own and has no inclusion probabilities",
            param_hint="--threshold",
        )
    preparation = preparation_of(run)
    x, y = new_inputs(run, data, root)
    model, likelihood = run.model(network), run.likelihood(network)
    if doubt is not None and not likelihood.classes:
        raise typer.BadParameter(
            f"{doubt}: {folder} predicts numbers, which have intervals in the place of doubts",
            param_hint="--doubt",
        )
    if samples is None:
        samples = 10 if likelihood.classes and not intervals else 100
    used = 0.5 if threshold is None else threshold
    if is_median:
        used = resolve_threshold(model, used)
    table = answers.answer(
        model,
        x,
        likelihood,
        mode=chosen,
        samples=samples,
        threshold=used,
        doubt=metrics.DOUBT_THRESHOLD if doubt is None else doubt,
        intervals=intervals,
        seed=seed,
        class_names=preparation.class_names,
        target_scaling=preparation.target_scaling,
    )
    if out is not None:
        answers.write(table, out)
    elif not as_json:
        answers.write_csv(table, sys.stdout)
    summary = answers.summary(table, y)
    if as_json:
        print_json(
            {
                **summary,
                "mode": mode,
                "samples": samples if chosen.random else None,
                "threshold": used if is_median and has_threshold else None,
                "network": network,
                "out": None if out is None else str(out),
                **({} if out is not None else {"rows": answers.as_rows(table)}),
            }
        )
    elif out is not None:
        typer.echo(f"wrote {out}: " + ", ".join(f"{k} {v}" for k, v in summary.items()))
