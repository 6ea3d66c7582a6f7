"""Rows of results: printed as a table, written as JSON."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from fastlbbnn._util.files import replace_file
from fastlbbnn._util.text_table import Column, text_table
from fastlbbnn.machine.describe import in_words

Row = dict[str, Any]


def machine() -> str:
    """What the figures were measured on."""
    return in_words()


def print_table(rows: list[Row], columns: dict[str, str]) -> None:
    """``columns``: key -> format, in order."""
    print(text_table(rows, {key: Column(key, partial(_written, how)) for key, how in columns.items()}))


def _written(how: str, value: Any) -> str:
    return format(value, how)


def write_json(rows: list[Row], path: Path | None) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
    print(f"wrote {path}")
