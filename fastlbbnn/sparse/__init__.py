"""Selected networks: what is left of a trained network, small and fast.

    small = fastlbbnn.select(model)                 # the median probability model
    small.save("digits.safetensors")
    small = fastlbbnn.sparse.SparseModel.load("digits.safetensors")
    logits = small(x)
    probabilities = small.predict(x, samples=10, likelihood="categorical")  # with the weights' uncertainty

``fastlbbnn.sparse.runtime`` does the same without torch. Names load on first use, so that importing it
imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy import lazy_exports

#: Public name -> module that defines it.
_EXPORTS = {
    "BlockArrays": "formats",
    "Plan": "engines.plan",
    "SparseLayer": "formats",
    "SparseModel": "model",
    "SparseNetwork": "formats",
    "read_artifact": "artifact",
    "select": "compact",
    "write_artifact": "artifact",
}

if TYPE_CHECKING:  # names for type checkers; users get them lazily
    from .artifact import read_artifact, write_artifact
    from .compact import select
    from .engines.plan import Plan
    from .formats import BlockArrays, SparseLayer, SparseNetwork
    from .model import SparseModel

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
