"""info, bench, selfcheck: about this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import app, print_json, table, use_threads, wrong_call
from .options import Json, Seed, Threads, optional


@app.command(short_help="Show versions, machine and backends.")
def info(as_json: Json = False) -> None:
    """Show versions, the machine, and which backends run here."""
    from ..machine import info as about

    if as_json:
        print_json(about.as_dict())
    else:
        about.main()


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
    batch: Annotated[int, typer.Option(min=1, help="Observations a step.")] = 100,
    temperature: Annotated[float, typer.Option(help="Of the gates.")] = 0.5,
    seconds: Annotated[float, typer.Option(min=0.0, help="To measure each network for.")] = 10.0,
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

    if temperature <= 0.0:
        raise typer.BadParameter(f"{temperature}: expected a positive number", param_hint="--temperature")
    with wrong_call("SIZES"):
        networks = [timing.parse_sizes(text) for text in sizes or ["784-400-600-10"]]
    count = use_threads(threads)
    rows = []
    for network in networks:
        rows += timing.compare(network, batch=batch, temperature=temperature, seconds=seconds, seed=seed)
    if as_json:
        print_json({"threads": count, "machine": timing.machine(), "rows": rows})
        return
    typer.echo(f"{timing.machine()}, {count} thread{'s' * (count > 1)}")
    columns = {
        "network": ("network", str),
        "batch": ("batch", str),
        "sizes": ("sizes", str),
        "seconds": ("ms a step", lambda v: f"{1e3 * v:.2f}"),
        "ratio": ("times plain", lambda v: f"{v:.2f}"),
        "rounds": ("rounds", str),
    }
    typer.echo(table(rows, columns))


@app.command(short_help="Check every kernel on this machine.")
def selfcheck(
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes, no timings.")] = False,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    report: Annotated[
        Path | None,
        optional("--report", metavar="FILE", help="Write a JSON report to this file."),
    ] = None,
) -> None:
    """Check every kernel against the reference here; what to run first on a new machine."""
    from ..machine.selfcheck import main as check

    arguments = ["--device", device, *(["--quick"] if quick else [])]
    if report is not None:
        arguments += ["--json", str(report)]
    sys.exit(check(arguments))
