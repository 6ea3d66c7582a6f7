"""predict: what a run or a selected network says about new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import app, print_json, use_threads, wrong_call
from .options import Json, Network, Root, Seed, Threads, optional


@app.command(short_help="Predict, with uncertainty and doubts.")
def predict(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run folder (`fastlbbnn train`), or the file of a selected network (`fastlbbnn select`).",
            show_default=False,
        ),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="What to predict: raw rows in a table (.csv, .tsv, also .gz) or .npz file, or the test rows "
            "of a named set.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        optional("--out", "-o", metavar="FILE", help="File to write, .csv or .npz; by default the screen."),
    ] = None,
    mode: Annotated[
        str | None,
        optional(
            help="What stands in for the weights: sampled (model averaging), mean, median, median-mean. By "
            "default the means of the median model, where there is one, or with --samples draws of it: the "
            "same from RUN and FILE.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        optional(
            "--samples", "-R", min=1,
            help="Draws to average (R in the paper), where networks are drawn; by default 10, or 100 "
            "for intervals and numbers.",
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
    """Predict: class probabilities, their uncertainty, and a decision or a doubt per row.

    \b
        fastlbbnn predict runs/digits digits -o digits.csv
        fastlbbnn predict runs/patients new.csv --mode sampled
        fastlbbnn predict patients.safetensors new.csv -o predictions.csv

    Rows are as they were in the training file: the model scales and encodes them itself. A table needs the
    columns of features that the model was trained on, in any order, an .npz file an array x. Columns of the
    result: the probability of each class, confidence (the largest of them), entropy and mutual information
    (in nats; what the draws disagree on), and the decision; with --intervals also the ends of a 95 %
    interval of each probability. For numbers instead of classes: their mean, a 95 % interval of a new
    observation and, where networks are drawn, one of the mean.
    """
    from ..nn.modes import WeightMode
    from ..prediction import metrics, table
    from ..runs.answers import answer_rows, predictor, rows_of

    if mode is not None and mode not in _MODES:
        raise typer.BadParameter(f"{mode!r}: expected {', '.join(_MODES)}", param_hint="--mode")
    if threshold is not None and not 0.0 <= threshold < 1.0:
        raise typer.BadParameter(f"{threshold}: expected a probability in [0, 1)", param_hint="--threshold")
    if intervals and samples == 1:
        raise typer.BadParameter(
            "one draw has no interval: expected several --samples", param_hint="--intervals"
        )
    if doubt is not None and not 0.0 <= doubt <= 1.0:
        raise typer.BadParameter(f"{doubt}: expected a probability in [0, 1]", param_hint="--doubt")
    if out is not None and out.suffix not in (".csv", ".npz"):
        raise typer.BadParameter(f"{out.name}: expected a name that ends in .csv or .npz", param_hint="--out")
    use_threads(threads)
    found = predictor(model, network)
    draws = samples is not None or intervals
    chosen = (found.drawing_mode if draws else found.default_mode) if mode is None else WeightMode(mode)
    is_median = chosen in (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN)
    if threshold is not None and not is_median:
        raise typer.BadParameter(
            f"{threshold} with --mode {chosen.value}: a threshold is for median and median-mean",
            param_hint="--threshold",
        )
    for option, given in (("--samples", samples), ("--intervals", intervals or None)):
        if given is not None and not chosen.random:
            raise typer.BadParameter(
                f"with --mode {chosen.value}, which draws nothing: expected sampled or median",
                param_hint=option,
            )
    with wrong_call("--mode"):
        found.check_mode(chosen)
    with wrong_call("--threshold"):
        used = found.resolve(chosen, threshold)
    is_class = found.likelihood.classes
    if doubt is not None and not is_class:
        raise typer.BadParameter(
            f"{doubt}: {model} predicts numbers, which have intervals instead of doubts",
            param_hint="--doubt",
        )
    if samples is None:
        samples = 10 if is_class and not intervals else 100
    if not is_class and not chosen.random:
        typer.echo(
            "note: intervals cover the noise of an observation alone; --samples 100 adds the uncertainty about "
            "the network",
            err=True,
        )
    rows = rows_of(found, data, root)
    answers = answer_rows(
        found, rows.inputs, mode=chosen, samples=samples, threshold=used,
        doubt=metrics.DOUBT_THRESHOLD if doubt is None else doubt, intervals=intervals, seed=seed,
    )  # fmt: skip
    if out is not None:
        table.write(answers, out)
    elif not as_json:
        table.write_csv(answers, sys.stdout)
    summary = table.summary(answers, rows.target)
    if as_json:
        print_json({
            **summary, "mode": chosen.value, "samples": samples if chosen.random else None,
            "threshold": used if is_median and found.has_threshold else None,
            "network": found.network_name, "out": None if out is None else str(out),
            **({} if out is not None else {"rows": table.as_rows(answers)}),
        })  # fmt: skip
    elif out is not None:
        typer.echo(f"wrote {out}: " + ", ".join(f"{k} {v}" for k, v in summary.items()))


_MODES = ("sampled", "mean", "median", "median-mean")
