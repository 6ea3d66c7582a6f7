"""Finds and loads the compiled operators, and remembers why not where they are missing."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from ..._util.build_notes import REBUILD, why_not_built
from . import triton as _triton

#: Name of the shared library that ``setup.py`` builds into the package.
LIBRARY = "_C.abi3.so"


def library_path() -> Path:
    return Path(__file__).parents[2] / LIBRARY


@functools.cache
def load() -> str | None:
    """Load the library once. Returns None when it is there, else the reason and what to do."""
    if _triton.interpreting():
        return (
            "TRITON_INTERPRET=1 is set, so Triton's interpreter serves CPU tensors in this process: "
            "unset it"
        )
    path = library_path()
    if not path.exists():
        return f"the C++ extension was not built: {why_not_built(path)} Then {REBUILD}"
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        return (
            f"the C++ extension does not load beside torch {torch.__version__} ({error}): "
            f"{REBUILD}"
        )
    return None
