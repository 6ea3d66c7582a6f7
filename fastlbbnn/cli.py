"""The command ``fastlbbnn``.

A command is a function here that says what it takes; what it does is imported when it is called,
so that ``fastlbbnn --help`` needs neither torch nor a second. Commands raise ``ValueError``,
``OSError`` or ``ImportError`` with a message for the user: ``main`` prints it and exits with 1.
Where the command line itself is wrong, the exit code is 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="fastlbbnn",
    help="Latent Binary Bayesian Neural Networks: train, select, deploy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from . import __version__

        typer.echo(f"fastlbbnn {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@app.command()
def info() -> None:
    """Show versions, the machine, and which backends run here."""
    from .info import main as show

    show()


@app.command()
def export(
    artifact: Annotated[
        Path,
        typer.Argument(
            metavar="ARTIFACT",
            help="A selected network: the file that SparseModel.save wrote.",
            show_default=False,
        ),
    ],
    c: Annotated[
        Path | None,
        typer.Option("--c", metavar="DIR", help="Write C99 source and header to this directory."),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="FILE", help="Write an ONNX model to this file."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the C functions and files; by default that of the artifact.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a selected network in another format, at its mean weights.

    \b
    In Python:    fastlbbnn.select(model).save("digits.safetensors")
    Then:         fastlbbnn export digits.safetensors --c firmware/src
                  fastlbbnn export digits.safetensors --onnx digits.onnx

    The C source needs no library: digits_predict(x, y) computes the outputs.
    """
    if c is None and onnx is None:
        raise typer.BadParameter("nothing to write; give --c DIR, --onnx FILE, or both")
    if name is not None and c is None:
        raise typer.BadParameter("--name is for the C source; give --c DIR, too")
    from .sparse.artifact import read_artifact

    network = read_artifact(artifact)
    if c is not None:
        from .sparse.c_source import export_c

        source, header = export_c(network, c, name=artifact.stem if name is None else name)
        typer.echo(f"wrote {source}\nwrote {header}")
    if onnx is not None:
        from .sparse.onnx import export_onnx

        typer.echo(f"wrote {export_onnx(network, onnx)}")


def main() -> None:
    """Entry point. Exits with 0; with 1 where a command fails; with 2 where the call is wrong."""
    try:
        app(prog_name="fastlbbnn")
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"fastlbbnn: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
