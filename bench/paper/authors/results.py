"""The file of finished runs: {"rows": [...], "inclusion": [...]}, rewritten whole after every seed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LISTS = ("rows", "inclusion")


def read(path: Path) -> dict[str, list[Row]]:
    if not path.exists():
        return {name: [] for name in LISTS}
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or set(found) != set(LISTS):
        raise SystemExit(f"{path} is no file of this script: expected an object with the lists {LISTS}")
    return found


def finished(path: Path, settings: Row) -> bool:
    """Whether rows with these settings (dataset, method, seed, epochs, post_epochs) are there."""
    return any(all(row.get(k) == v for k, v in settings.items()) for row in read(path)["rows"])


def append(path: Path, settings: Row, rows: list[Row], inclusion: list[Row]) -> None:
    """Adds the rows of one run, each with its settings. The file is there whole or not at all."""
    found = read(path)
    found["rows"] += [{**settings, **row} for row in rows]
    found["inclusion"] += [{**settings, **row} for row in inclusion]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    lists = (
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in found[name]) + "\n]" for name in LISTS
    )
    temporary.write_text("{\n" + ",\n".join(lists) + "\n}\n")
    temporary.replace(path)
