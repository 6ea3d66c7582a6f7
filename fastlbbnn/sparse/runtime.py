"""Predictions with numpy and the C++ library alone: the door to ``SparseModel`` without torch.

    from fastlbbnn.sparse import runtime

    model = runtime.load("digits.safetensors")
    logits = model(rows)                                # rows: [batch, columns], or columns by name
    draws = model.sample(rows, samples=10, seed=0)      # [10, batch, classes]

It is the same class that ``fastlbbnn.select`` gives; nothing here imports torch.
"""

from __future__ import annotations

from .model import SparseModel

load = SparseModel.load

__all__ = ["SparseModel", "load"]
