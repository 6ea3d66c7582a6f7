"""Noise of the counter-based stream for layers that draw something of their own.

The same bits from every backend: on a CPU in float32 the compiled kernels make them, else the reference.
"""

from __future__ import annotations

from torch import Tensor

from .. import ops, reference
from ..reference import Stream
from . import backends


def normals(seed: Tensor, stream: Stream, samples: int, rows: int, cols: int, like: Tensor) -> Tensor:
    """Standard normals ``[samples, rows, cols]`` of ``like``'s dtype."""
    count = samples * rows
    if backends.choose(like) == "cpp":
        noise = ops.inspect.noise(seed, "normal", count, cols, stream=stream)
    else:
        noise = reference.normals(seed, stream, 0, count, cols)
    return noise.reshape(samples, rows, cols).to(like.dtype)


def logistics(seed: Tensor, samples: int, rows: int, cols: int, like: Tensor) -> Tensor:
    """Standard logistic noise ``[samples, rows, cols]``: what a gate compares its logit with."""
    count = samples * rows
    if backends.choose(like) == "cpp":
        noise = ops.inspect.noise(seed, "logistic", count, cols)
    else:
        noise = reference.gate_logistics(seed, 0, count, cols)
    return noise.reshape(samples, rows, cols).to(like.dtype)
