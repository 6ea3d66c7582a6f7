"""The counter-based noise for those who draw something of their own, and the operators that show it.

The same bits from every backend: on a CPU the compiled kernels make them, else the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..reference.noise import Stream
from . import dispatch
from .backends import BACKENDS
from .library import define, fake, padded

define(
    "noise(Tensor seed, str kind, int stream, int sample, int rows, int cols, int block_rows, "
    "int block_cols) -> Tensor"
)
define("vecmath(Tensor x, int function) -> Tensor")
define("cpu_capability() -> str")

#: The elementary functions of ``csrc/common/vecmath.h``, by their number there.
VECMATH = (
    "exp", "log", "log1p", "sigmoid", "sigmoid_slope", "entropy", "softplus", "log_softplus",
    "log_softplus_slope",
)


@fake("noise")
def _(seed, kind, stream, sample, rows, cols, block_rows, block_cols):
    return torch.empty(rows, padded(cols), device=seed.device)


@fake("vecmath")
def _(x, function):
    return x.new_empty(x.shape)


def compiled_noise(
    seed: Tensor,
    kind: str,
    rows: int,
    cols: int,
    *,
    stream: Stream = Stream.WEIGHT,
    sample: int = 0,
    block: tuple[int, int] = (1, 1),
) -> Tensor:
    """The C++ kernels' noise: "normal" of a stream, "uniform" or "logistic" of the gates."""
    out = torch.ops.fastlbbnn.noise(seed, kind, int(stream), sample, rows, cols, *block)
    return out[:, :cols]


def vecmath(x: Tensor, function: str) -> Tensor:
    """One elementary function of the C++ kernels, elementwise."""
    return torch.ops.fastlbbnn.vecmath(x, VECMATH.index(function))


def normals(seed: Tensor, stream: Stream, samples: int, rows: int, cols: int, like: Tensor) -> Tensor:
    """Standard normals ``[samples, rows, cols]`` of ``like``'s dtype."""
    noise = dispatch.choose(like).normals(seed, stream, samples * rows, cols)
    return noise.reshape(samples, rows, cols).to(like.dtype)


def logistics(seed: Tensor, samples: int, rows: int, cols: int, like: Tensor) -> Tensor:
    """Standard logistic noise ``[samples, rows, cols]``: what a gate compares its logit with."""
    noise = dispatch.choose(like).logistics(seed, samples * rows, cols)
    return noise.reshape(samples, rows, cols).to(like.dtype)


def logit_noise(seed: Tensor, rows: int, cols: int) -> Tensor:
    """Standard normals ``[rows, cols]`` in float32 for random logits of the draw with this seed.

    Apart from that draw's own noise; compiled wherever the C++ kernels are built.
    """
    key = seed ^ reference.LOGIT_KEY
    if key.device.type == "cpu" and _has_compiled():
        return compiled_noise(key, "normal", rows, cols)
    return reference.normals(key, Stream.WEIGHT, 0, rows, cols)


@torch.compiler.assume_constant_result
def _has_compiled() -> bool:
    return BACKENDS["cpp"].unavailable() is None
