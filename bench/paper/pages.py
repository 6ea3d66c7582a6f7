"""Text that is written into a page between two markers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def between_markers(path: Path, begin: str, end: str) -> tuple[str, str, str]:
    """What stands before, between and after the two markers, which are part of the outer two."""
    before, found_begin, rest = path.read_text(encoding="utf-8").partition(begin)
    between, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise SystemExit(f"{path} has not the two markers {begin!r} and {end!r}")
    return before + begin, between, end + after


def write_between_markers(path: Path, begin: str, end: str, text: str) -> None:
    before, _, after = between_markers(path, begin, end)
    path.write_text(f"{before}\n\n{text}\n{after}", encoding="utf-8")
