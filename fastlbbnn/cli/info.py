"""info: versions, the machine, backends."""

from __future__ import annotations

import typer

from .app import app, print_json
from .options import Json


@app.command(short_help="Show versions, machine and backends.")
def info(as_json: Json = False) -> None:
    """Show versions, the machine, and which backends run here."""
    from ..machine import info as about

    if as_json:
        print_json(about.as_dict())
    else:
        typer.echo(about.in_text())
