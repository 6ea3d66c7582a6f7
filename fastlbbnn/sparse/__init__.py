"""Selected networks: what is left of a trained network, small and fast.

    small = fastlbbnn.select(model, preparation=data.preparation, likelihood="categorical")
    small.save("digits.safetensors")                # the median probability model, with all it needs
    small = fastlbbnn.sparse.SparseModel.load("digits.safetensors")
    logits = small(rows)                            # raw rows, as the data have them
    probabilities = small.predict(rows, samples=10) # with the uncertainty of the weights

``fastlbbnn.sparse.runtime`` does the same without torch. Names load on first use, so that importing it
imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy import lazy_exports

#: Public name -> module that defines it.
_EXPORTS = {
    "BlockArrays": "network",
    "Description": "description",
    "FORMATS": "formats",
    "Format": "formats",
    "Plan": "engines.plan",
    "SparseLayer": "network",
    "SparseModel": "model",
    "SparseNetwork": "network",
    "Weights": "formats",
    "export_c": "export.c",
    "export_onnx": "export.onnx",
    "read_artifact": "artifact",
    "select": "compact",
    "write_artifact": "artifact",
}

if TYPE_CHECKING:  # names for type checkers; users get them lazily
    from .artifact import read_artifact, write_artifact
    from .compact import select
    from .description import Description
    from .engines.plan import Plan
    from .export.c import export_c
    from .export.onnx import export_onnx
    from .formats import FORMATS, Format, Weights
    from .model import SparseModel
    from .network import BlockArrays, SparseLayer, SparseNetwork

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
