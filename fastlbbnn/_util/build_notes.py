"""Why this installation lacks a compiled library, in the words of its build."""

from __future__ import annotations

from pathlib import Path

#: What to do once the reason is gone.
REBUILD = "run in a checkout of fastlbbnn: make build (or: pip install --no-build-isolation --no-deps .)"


def why_not_built(library: Path) -> str:
    """The build's own words about ``library``, which is missing: no torch, no compiler, or asked not to."""
    note = library.with_name(f"{library.name.split('.')[0]}.not-built.txt")
    try:
        return note.read_text(encoding="utf-8").strip()
    except OSError:
        return f"{library.name} is missing, and its build did not say why (it needs a C++17 compiler)."
