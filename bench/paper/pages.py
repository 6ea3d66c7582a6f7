"""Tables that are written into a page between two markers."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    rows = [head, ["---"] * len(head), *lines]
    return [f"| {' | '.join(row)} |" for row in rows]


def between_markers(page: str, begin: str, end: str) -> tuple[str, str, str]:
    """What stands before, between and after the two markers, which are part of the outer two."""
    before, found_begin, rest = page.partition(begin)
    between, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise SystemExit(f"the page has not the two markers {begin!r} and {end!r}")
    return before + begin, between, end + after


def write_between_markers(path: Path, begin: str, end: str, text: str) -> None:
    before, _, after = between_markers(path.read_text(encoding="utf-8"), begin, end)
    path.write_text(f"{before}\n\n{text}\n{after}", encoding="utf-8")
