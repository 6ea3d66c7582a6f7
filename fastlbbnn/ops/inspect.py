"""Operators that tests and ``fastlbbnn.machine.info`` look at the compiled backend with."""

from __future__ import annotations

import torch

from ..reference.noise import Stream
from .library import define, padded

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


@torch.library.register_fake("fastlbbnn::noise")
def _(seed, kind, stream, sample, rows, cols, block_rows, block_cols):
    return torch.empty(rows, padded(cols), device=seed.device)


@torch.library.register_fake("fastlbbnn::vecmath")
def _(x, function):
    return torch.empty_like(x)


def noise(
    seed: torch.Tensor,
    kind: str,
    rows: int,
    cols: int,
    *,
    stream: Stream = Stream.WEIGHT,
    sample: int = 0,
    block: tuple[int, int] = (1, 1),
) -> torch.Tensor:
    """The compiled backend's noise: "normal" of a stream, "uniform" or "logistic" of the gates."""
    out = torch.ops.fastlbbnn.noise(seed, kind, int(stream), sample, rows, cols, *block)
    return out[:, :cols]


def vecmath(x: torch.Tensor, function: str) -> torch.Tensor:
    """One elementary function of the compiled backend, elementwise."""
    return torch.ops.fastlbbnn.vecmath(x, VECMATH.index(function))
