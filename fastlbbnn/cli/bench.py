"""bench: how long a training step takes here."""

from __future__ import annotations

from typing import Annotated

import typer

from .._util.text_table import Column, text_table
from .app import app, print_json, use_threads, wrong_call
from .options import Json, Seed, Threads

COLUMNS = {
    "network": Column("network"),
    "batch": Column("batch"),
    "sizes": Column("sizes"),
    "seconds": Column("ms per step", lambda v: f"{1e3 * v:.2f}"),
    "ratio": Column("times plain", "{:.2f}".format),
    "rounds": Column("rounds"),
}


@app.command(short_help="Time a training step on this machine.")
def bench(
    sizes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SIZES]...",
            help="Networks, as inputs-hidden-...-outputs; by default 784-400-600-10.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Observations per step.")] = 100,
    temperature: Annotated[float, typer.Option(help="Gate temperature.")] = 0.5,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds to measure for.")] = 10.0,
    threads: Threads = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time a training step: LBBNN and dense BNN against a plain network.

    \b
        fastlbbnn bench
        fastlbbnn bench 784-2048-2048-10 --batch 512 --threads 2

    The three take turns, a few steps each, so that whatever else the machine does hits all of them. The
    ratio is the median over rounds of the ratio within a round. All train with fused Adam.
    """
    from ..machine import timing
    from ..machine.describe import describe, in_words

    if temperature <= 0.0:
        raise typer.BadParameter(f"{temperature}: expected a positive number", param_hint="--temperature")
    with wrong_call("SIZES"):
        networks = [timing.parse_sizes(text) for text in sizes or ["784-400-600-10"]]
    count = use_threads(threads)
    rows = []
    for network in networks:
        rows += timing.compare(network, batch=batch, temperature=temperature, seconds=seconds, seed=seed)
    if as_json:
        print_json({"threads": count, "machine": describe(), "rows": rows})
        return
    typer.echo(f"{in_words()}, {count} thread{'s' * (count > 1)}")
    typer.echo(text_table(rows, COLUMNS))
