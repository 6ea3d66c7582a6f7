"""Rows of results: printed as a table, written as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastlbbnn.machine.describe import in_words

Row = dict[str, Any]


def machine() -> str:
    """What the figures were measured on."""
    return in_words()


def print_table(rows: list[Row], columns: dict[str, str]) -> None:
    """``columns``: key -> format, in order."""
    cells = [list(columns)]
    for row in rows:
        cells.append(["-" if row.get(k) is None else format(row[k], f) for k, f in columns.items()])
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(w) for cell, w in zip(line, widths)))


def write_json(rows: list[Row], path: Path | None) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
    temporary.replace(path)
    print(f"wrote {path}")
