"""Versions, the machine, and the state of every backend: what `fastlbbnn info` shows."""

from __future__ import annotations

from typing import Any

from ..ops.backends import BACKENDS
from .describe import describe, in_words


def backend_states() -> dict[str, str | None]:
    """Backend -> None when it runs here, else why not and what to do."""
    return {name: backend.unavailable() for name, backend in BACKENDS.items()}


def sparse_states() -> dict[str, str | None]:
    """Library of selected networks -> None when it runs here, else why not and what to do."""
    from ..sparse.engines import cuda, native

    return {"cpu": native.unavailable(), "cuda": cuda.unavailable()}


def as_dict() -> dict[str, Any]:
    """A backend that is on has None for the reason why not."""
    return {**describe(), "backends": backend_states(), "selected_networks": sparse_states()}


def in_text() -> str:
    """The same for readers."""
    about = as_dict()
    commit = f" ({about['commit']})" if "commit" in about else ""
    lines = [
        f"fastlbbnn {about['fastlbbnn']}{commit}, torch {about['torch']}, Python {about['python']}",
        f"{in_words(about)}, {about['threads']} threads",
        "backends, fastest first:",
    ]
    for name, reason in about["backends"].items():
        if reason is None:
            kernels = f" [{about['cpu_kernels']}]" if name == "cpp" else ""
            lines.append(f"  {name:<10} on    {BACKENDS[name].describes}{kernels}")
        else:
            lines.append(f"  {name:<10} OFF   {reason}")
    lines.append("selected networks (fastlbbnn.select):")
    for name, reason in about["selected_networks"].items():
        lines.append(f"  {name:<10} " + ("on" if reason is None else f"OFF   {reason}"))
    return "\n".join(lines)
