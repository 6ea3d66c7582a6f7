"""Every room of the package imports what docs/architecture.md says that it may, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def stated() -> dict[str, tuple[set[str], set[str]]]:
    """Room -> what it may import when it loads, and what later, by the page's table."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", page, re.MULTILINE)
    at_load = {room: cell.partition("late:") for room, cell in rows}
    return {
        room: (set(re.findall(r"`(\w+)`", now)), set(re.findall(r"`(\w+)`", late)))
        for room, (now, _, late) in at_load.items()
    }


def modules(room: str) -> Iterator[tuple[Path, list[str]]]:
    """The room's files, and the names of the packages that they are in."""
    folder = ROOT / "kernels" if room == "kernels" else ROOT / "fastlbbnn" / room
    for path in folder.rglob("*.py"):
        yield path, ["fastlbbnn", room, *path.relative_to(folder).parts[:-1]]


def imported(node: ast.AST, package: list[str], late: bool = False) -> Iterator[tuple[str, bool]]:
    """Rooms that code imports, and whether only when it is called; types are not counted."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom):
            base = package[: len(package) + 1 - child.level] if child.level else []
            names = [*base, *(child.module or "").split(".")] if child.module else base
            for found in [names[1]] if len(names) > 1 else [alias.name for alias in child.names]:
                if names[0] == "fastlbbnn":
                    yield found, late
        elif isinstance(child, ast.Import):
            for alias in child.names:
                names = alias.name.split(".")
                if names[0] == "fastlbbnn" and len(names) > 1:
                    yield names[1], late
        yield from imported(child, package, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


STATED = stated()


def test_every_room_is_on_the_page():
    folders = {path.parent.name for path in (ROOT / "fastlbbnn").glob("*/__init__.py")} | {"kernels"}
    assert set(STATED) == folders


@pytest.mark.parametrize("room", STATED)
def test_a_room_imports_what_it_may(room):
    at_load, later = STATED[room]
    for path, package in modules(room):
        for other, late in imported(ast.parse(path.read_text()), package):
            if other not in STATED or other in (room, "_util"):
                continue  # fastlbbnn.__version__, itself, or what everybody may
            assert other in at_load or (late and other in later), (
                f"{path.relative_to(ROOT)} imports {other}{' in a function' if late else ''}; "
                f"docs/architecture.md lets {room} import {', '.join(sorted(at_load)) or 'nothing'}"
            )


def test_nothing_on_the_page_is_unused():
    for room, (at_load, later) in STATED.items():
        found = [pair for path, package in modules(room) for pair in imported(ast.parse(path.read_text()), package)]
        assert at_load <= {other for other, late in found if not late}, room
        assert later <= {other for other, late in found if late}, room
