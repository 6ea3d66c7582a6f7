"""Selected networks: what is left of a trained network, small and fast.

    small = fastlbbnn.select(model)                 # the median probability model
    small.save("digits.safetensors")
    small = fastlbbnn.sparse.SparseModel.load("digits.safetensors")
    logits = small(x)
    probabilities = small.predict(x, samples=10)    # with the uncertainty of the weights

``fastlbbnn.sparse.runtime`` does the same without torch. Names load on first use, so that importing it
imports nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

#: Public name -> module that defines it.
_EXPORTS = {
    "BlockArrays": "formats",
    "Plan": "plan",
    "SparseLayer": "formats",
    "SparseModel": "model",
    "SparseNetwork": "formats",
    "read_artifact": "artifact",
    "select": "selection",
    "write_artifact": "artifact",
}

__all__ = sorted(_EXPORTS)

if TYPE_CHECKING:  # names for type checkers; users get them lazily
    from .artifact import read_artifact, write_artifact  # noqa: F401
    from .formats import BlockArrays, SparseLayer, SparseNetwork  # noqa: F401
    from .model import SparseModel  # noqa: F401
    from .plan import Plan  # noqa: F401
    from .selection import select  # noqa: F401


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
