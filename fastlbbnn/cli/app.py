"""The command's frame: what all commands share, and how they end."""

from __future__ import annotations

import importlib
import json
import math
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

HELP = """Latent Binary Bayesian Neural Networks: train, select, deploy.

\b
A first network, on digits that scikit-learn ships:
    fastlbbnn train digits --out runs/digits
    fastlbbnn report runs/digits
    fastlbbnn select runs/digits -o digits.safetensors
    fastlbbnn export digits.safetensors --c src

\b
Your own table, and new rows of it:
    fastlbbnn train patients.csv --target outcome --out runs/patients
    fastlbbnn predict runs/patients new.csv -o predictions.csv

\b
A table of the paper, with its figures:
    fastlbbnn reproduce phoneme --runs 3 --jobs 2

\b
A data set, recipe or likelihood of your own, registered in my_things.py:
    fastlbbnn --import my_things train my-data --recipe mine

Exit status: 0 if all went well, 1 if something failed, 2 if the call is wrong, 130 if interrupted
(the same call again continues a training run).
"""

app = typer.Typer(
    name="fastlbbnn",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        typer.echo(f"fastlbbnn {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", show_default=False,
            help="Import a Python module first, which registers things of your own (repeatable).",
        ),
    ] = None,
) -> None:
    for module in modules or ():
        _import(module)


def _import(module: str) -> None:
    """A module of the user's, installed or in the current folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise
        raise typer.BadParameter(
            f"there is no module {module!r} in {here} or among the installed ones; expected a name such as "
            "my_things for my_things.py",
            param_hint="--import",
        ) from error


def main() -> None:
    """Entry point. Exits with 0; with 1 where a command fails; with 2 where the call is wrong."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _note
            app(prog_name="fastlbbnn")
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"fastlbbnn: {error}", err=True)
        sys.exit(1)


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one line, without the place in the code that it came from."""
    typer.echo(f"note: {message}", err=True)


@contextmanager
def wrong_call(option: str | None = None) -> Iterator[None]:
    """A ValueError within is the caller's: exit status 2 and how to call."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


@contextmanager
def interruptible(again: str) -> Iterator[None]:
    """Ctrl-C within, or SIGTERM, as batch systems send it, says what to do next and exits with 130."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _interrupt) if main else None
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted; {again}", err=True)
        raise typer.Exit(130) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def warn_loudly(sentences: Iterable[str]) -> None:
    """What a reader must not miss, on the error stream."""
    for i, sentence in enumerate(sentences):
        typer.echo(f"{'WARNING: ' if i == 0 else '         '}{sentence}", err=True)


def use_threads(count: int | None) -> int:
    import torch

    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


def print_json(content: Mapping[str, Any]) -> None:
    """One object; what JSON has no word for (NaN, infinity) becomes null."""
    typer.echo(json.dumps(_plain(content), indent=1, default=str))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
