"""selfcheck: every kernel against the reference, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app, wrong_call
from .options import optional


@app.command(short_help="Check every kernel on this machine.")
def selfcheck(
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes, no timings.")] = False,
    device: Annotated[
        str, typer.Option(help="auto (the GPU, if there is one, and the CPU), cuda (also ROCm) or cpu.")
    ] = "auto",
    backend: Annotated[
        list[str] | None,
        optional("--backend", metavar="NAME", help="Only this backend, such as triton (repeatable)."),
    ] = None,
    width: Annotated[int | None, optional("--width", help="Width of the timed layer, at least 16.")] = None,
    batch: Annotated[
        list[int] | None, optional("--batch", help="Batch of the timed layer (repeatable).")
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--list", help="Name every launch variant and the case that checks it, and stop."),
    ] = False,
    report: Annotated[
        Path | None, optional("--json", metavar="FILE", help="Write the report to this file, as JSON.")
    ] = None,
) -> None:
    """Check every kernel against the reference here; what to run first on a new machine.

    \b
        fastlbbnn selfcheck --quick
        fastlbbnn selfcheck --json report.json
        fastlbbnn selfcheck --list

    1. Every operator of every backend (Triton on the GPU, C++ on the CPU), forward and all gradients, in
    every precision, against the reference in float64. An error may be twice that of plain PyTorch in the
    same precision. The same call twice must give the same bits.

    2. On a GPU: training steps in a CUDA graph, under torch.compile, on two streams and two devices; selected
    networks.

    3. Times of one layer, forward and backward, against a dense layer, the gated layer in plain PyTorch and
    the same under torch.compile; and of whole training steps with Adam.

    Exit status: 0 if everything agrees, 1 if something does not, 2 if the call is wrong.
    """
    from .._util.files import write_json
    from ..machine.selfcheck import Options, check_machine, list_variants, print_variants

    if report is not None and not report.resolve().parent.is_dir():
        raise typer.BadParameter(f"{report}: the folder does not exist", param_hint="--json")
    if show:
        with wrong_call():
            listed = list_variants()
        print_variants(listed)
        if report is not None:
            write_json(report, listed)
            typer.echo(f"wrote {report}")
        raise typer.Exit(0 if listed["ok"] else 1)
    with wrong_call():
        options = Options(
            quick=quick, device=device, backends=tuple(backend or ()), width=width, batches=tuple(batch or ())
        )
    found = check_machine(options)
    if report is not None:
        write_json(report, found)
        typer.echo(f"wrote {report}")
    typer.echo("everything agrees" if found["ok"] else "SOMETHING IS WRONG: see above")
    raise typer.Exit(0 if found["ok"] else 1)
