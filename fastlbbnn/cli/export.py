"""export: a selected network in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .options import optional

Artifact = Annotated[
    Path,
    typer.Argument(
        metavar="ARTIFACT", help="A selected network: what `fastlbbnn select` wrote.", show_default=False
    ),
]


@app.command(short_help="Write a sparse network as C or ONNX.")
def export(
    artifact: Artifact,
    c: Annotated[
        Path | None,
        typer.Option("--c", metavar="DIR", help="Write C99 source and header to this directory."),
    ] = None,
    lanes: Annotated[
        bool,
        typer.Option(
            "--lanes", help="Write the C source for speed: straight-line code that computes many rows side by side.",
        ),
    ] = False,
    onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="FILE", help="Write an ONNX model to this file."),
    ] = None,
    name: Annotated[
        str | None,
        optional(metavar="NAME", help="Name of the C functions and files; by default the artifact's."),
    ] = None,
) -> None:
    """Write a selected network in another format, at its mean weights.

    \b
    Select:       fastlbbnn select runs/digits -o digits.safetensors
    In Python:    fastlbbnn.select(model).save("digits.safetensors")
    Then:         fastlbbnn export digits.safetensors --c firmware/src
                  fastlbbnn export digits.safetensors --c server/src --lanes
                  fastlbbnn export digits.safetensors --onnx digits.onnx

    The C source needs no library: digits_predict(x, y) computes the outputs. Where training prepared rows,
    digits_prepare(row, x) does so before, and digits_in_units(y, answer) puts back units of numbers. With --lanes
    the functions are the same; compile with -O2 -march=native.
    """
    if c is None and onnx is None:
        raise typer.BadParameter("nothing to write; give --c DIR, --onnx FILE, or both")
    if name is not None and c is None:
        raise typer.BadParameter("--name is for the C source; give --c DIR, too")
    if lanes and c is None:
        raise typer.BadParameter("--lanes is for the C source; give --c DIR, too")
    from ..sparse import SparseModel

    model = SparseModel.load(artifact)
    if c is not None:
        from ..sparse.export.c import export_c

        source, header = export_c(model, c, name=artifact.stem if name is None else name, lanes=lanes)
        typer.echo(f"wrote {source}\nwrote {header}")
    if onnx is not None:
        from ..sparse.export.onnx import export_onnx

        typer.echo(f"wrote {export_onnx(model, onnx)}")
