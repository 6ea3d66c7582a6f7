"""Argument checks: what was given, what was expected, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..reference.sums import grid_shape
from .dtypes import may_mix

PARAMETER_NAMES = ("kappa", "rho", "omega", "bias_kappa", "bias_rho")


def _shape(t: Tensor) -> str:
    return "[" + ", ".join(str(n) for n in t.shape) + "]"


def check_positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; expected a positive int")
    if value < 1:
        raise ValueError(f"{name}={value}; expected at least 1")
    return value


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        names = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{name}={value!r}; expected one of {names}")


def check_samples(samples: object) -> None:
    check_positive_int("samples", samples)


def check_block(block: object) -> None:
    if not isinstance(block, (tuple, list)) or len(block) != 2:
        raise TypeError(f"block={block!r}; expected a pair (rows, columns) of positive ints")
    for n, name in zip(block, ("block[0]", "block[1]")):
        check_positive_int(name, n)


def check_temperature(temperature: object) -> None:
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
        raise TypeError(
            f"temperature={temperature!r} is a {type(temperature).__name__}; expected a positive float"
        )
    if not (0.0 < temperature < math.inf):
        raise ValueError(
            f"temperature={temperature}; expected a positive number (for gates that are exactly 0 or "
            "1, use hard=True)"
        )


def check_parameters(
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None,
    bias_rho: Tensor | None,
    block: tuple[int, int],
) -> None:
    """Shapes, dtypes and devices of a layer's parameters agree."""
    if not isinstance(kappa, Tensor) or kappa.dim() != 2:
        raise ValueError(f"kappa is {_describe(kappa)}; expected a tensor [N, K]")
    rows, cols = kappa.shape
    expected: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("rho", rho, (rows, cols)),
        ("omega", omega, grid_shape(rows, cols, tuple(block))),
        ("bias_kappa", bias_kappa, (rows,)),
        ("bias_rho", bias_rho, (rows,)),
    ]
    if rho is None:
        raise ValueError("rho is None; expected a tensor like kappa")
    if (bias_kappa is None) != (bias_rho is None):
        raise ValueError("bias_kappa and bias_rho go together; one of them is None")
    if not kappa.dtype.is_floating_point:
        raise TypeError(f"kappa is {kappa.dtype}; expected a floating dtype")
    for name, t, shape in expected:
        if t is None:
            continue
        if tuple(t.shape) != shape:
            blocks = f" for blocks of {tuple(block)}" if name == "omega" else ""
            raise ValueError(
                f"{name} is {_shape(t)}; expected {list(shape)}{blocks} with kappa {_shape(kappa)}"
            )
        _check_like(name, t, kappa)


def check_seed(name: str, seed: object, count: int) -> None:
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64 or seed.numel() != count:
        given = f"{seed.dtype} {_shape(seed)}" if isinstance(seed, Tensor) else repr(seed)
        raise ValueError(
            f"{name} is {given}; expected an int64 tensor of {count} element{'s'[: count > 1]} (draw it "
            "with fastlbbnn.ops.functional.draw_seed)"
        )


def check_input(x: Tensor, kappa: Tensor, samples: int) -> None:
    cols = kappa.shape[1]
    if not isinstance(x, Tensor) or x.dim() not in (2, 3) or x.shape[-1] != cols:
        raise ValueError(
            f"x is {_describe(x)}; expected [M, {cols}] or [samples, M, {cols}] with kappa "
            f"{_shape(kappa)}"
        )
    if x.dim() == 3 and x.shape[0] != samples:
        raise ValueError(f"x is {_shape(x)}, with {x.shape[0]} samples; expected samples={samples}")
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
    return _shape(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def explain_failure(*parameters: Tensor | None) -> None:
    """Raise ValueError if a parameter holds NaN or infinity, and say which and where."""
    if torch.compiler.is_compiling():
        return  # a look at values would split the compiled graph
    for name, t in zip(PARAMETER_NAMES, parameters):
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


def explain_nan_sums(sums: Tensor, layers: Sequence[Sequence[Tensor | None]]) -> None:
    """Within ``torch.autograd.detect_anomaly``: raise if the sums are not finite and a parameter is why.

    For kernels on a GPU, which let NaN through: to look at a value there is to wait for the device.
    """
    if torch.compiler.is_compiling() or not torch.is_anomaly_enabled():
        return
    if not torch.isfinite(sums.detach()).all():
        for parameters in layers:
            explain_failure(*parameters)
