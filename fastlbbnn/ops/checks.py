"""Checks of the operators' tensors: what was given, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._util.checks import shape_of
from .._util.dtypes import may_mix
from ..reference.sums import grid_shape
from .parameters import LayerParameters


def check_parameters(layer: LayerParameters, block: tuple[int, int]) -> None:
    """Shapes, dtypes and devices of a layer's parameters agree."""
    kappa = layer.kappa
    if not isinstance(kappa, Tensor) or kappa.dim() != 2:
        raise ValueError(f"kappa is {_describe(kappa)}; expected a tensor [N, K]")
    rows, cols = kappa.shape
    if layer.rho is None:
        raise ValueError("rho is None; expected a tensor like kappa")
    if (layer.bias_kappa is None) != (layer.bias_rho is None):
        raise ValueError("bias_kappa and bias_rho go together; one of them is None")
    if not kappa.dtype.is_floating_point:
        raise TypeError(f"kappa is {kappa.dtype}; expected a floating dtype")
    grid = grid_shape(rows, cols, (block[0], block[1]))
    shapes: tuple[tuple[int, ...], ...] = ((rows, cols), (rows, cols), grid, (rows,), (rows,))
    for name, t, shape in zip(LayerParameters._fields, layer, shapes):
        if t is None or name == "kappa":
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is {_describe(t)}; expected a tensor {list(shape)}")
        if tuple(t.shape) != shape:
            blocks = f" for blocks of {tuple(block)}" if name == "omega" else ""
            raise ValueError(
                f"{name} is {shape_of(t)}; expected {list(shape)}{blocks} with kappa {shape_of(kappa)}"
            )
        _check_like(name, t, kappa)


def check_seed(name: str, seed: object, count: int) -> None:
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64 or seed.numel() != count:
        given = f"{seed.dtype} {shape_of(seed)}" if isinstance(seed, Tensor) else repr(seed)
        raise ValueError(
            f"{name} is {given}; expected an int64 tensor of {count} element{'s'[: count > 1]} (draw it "
            "with fastlbbnn.ops.draw_seed)"
        )


def check_input(x: Tensor, kappa: Tensor, samples: int) -> None:
    cols = kappa.shape[1]
    if not isinstance(x, Tensor) or x.dim() not in (2, 3) or x.shape[-1] != cols:
        raise ValueError(
            f"x is {_describe(x)}; expected [M, {cols}] or [samples, M, {cols}] with kappa "
            f"{shape_of(kappa)}"
        )
    if x.dim() == 3 and x.shape[0] != samples:
        raise ValueError(f"x is {shape_of(x)}, with {x.shape[0]} samples; expected samples={samples}")
    if not may_mix(x.dtype, kappa.dtype):
        raise TypeError(
            f"x is {x.dtype} and kappa is {kappa.dtype}; expected one dtype, or bfloat16 or float16 beside "
            f"float32 parameters (convert with .to({kappa.dtype}))"
        )
    _check_device("x", x, kappa)


def _check_like(name: str, t: Tensor, kappa: Tensor) -> None:
    if t.dtype != kappa.dtype:
        raise TypeError(
            f"{name} is {t.dtype} and kappa is {kappa.dtype}; expected one dtype "
            f"(convert with .to({kappa.dtype}))"
        )
    _check_device(name, t, kappa)


def _check_device(name: str, t: Tensor, kappa: Tensor) -> None:
    if t.device != kappa.device:
        raise ValueError(
            f"{name} is on {t.device} and kappa on {kappa.device}; expected one device "
            f"(move with .to({str(kappa.device)!r}))"
        )


def _describe(value: object) -> str:
    return shape_of(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def explain_failure(layers: Sequence[LayerParameters]) -> None:
    """Raise ValueError if a parameter holds NaN or infinity, and say which and where."""
    if torch.compiler.is_compiling():
        return  # a look at values would split the compiled graph
    for layer in layers:
        for name, t in zip(LayerParameters._fields, layer):
            if t is None:
                continue
            bad = ~torch.isfinite(t.detach())
            if bad.any():
                where = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"{name} holds {int(bad.sum())} values that are not finite, the first "
                    f"{t.detach()[tuple(where)].item()} at {where}; expected finite parameters (has the "
                    "training diverged? lower the learning rate)"
                )


def explain_nan_sums(sums: Tensor, layers: Sequence[LayerParameters]) -> None:
    """Within ``torch.autograd.detect_anomaly``: raise if the sums are not finite and a parameter is why.

    For kernels on a GPU, which let NaN through: to look at a value there is to wait for the device.
    """
    if torch.compiler.is_compiling() or not torch.is_anomaly_enabled():
        return
    if not torch.isfinite(sums.detach()).all():
        explain_failure(layers)
