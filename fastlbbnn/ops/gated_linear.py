"""``fastlbbnn::gated_linear_*``: sampled, gated weights and a linear map, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._util.checks import check_block, check_samples, check_temperature
from . import dispatch, update
from .checks import check_parameters
from .library import ADAM, define, differentiable_once, fake, gradient_of, keeps_draws, padded
from .parameters import MUTABLE_SCHEMA, SCHEMA, LayerParameters

_DRAW = (
    "Tensor seed, int samples, int block_rows, int block_cols, float temperature, bool hard"
)

# y [S, M, N], sums [5] in float32, and what the pass keeps for the backward one: on a CPU
# saved [S, draw], of each draw the rows of weights and eps, [N, 2, padded K], and for blocks the gates;
# on a GPU nothing.
define(f"gated_linear_fwd(Tensor x, {SCHEMA}, {_DRAW}, bool save) -> (Tensor, Tensor, Tensor)")
# Gradients of x, kappa, rho, omega, bias_kappa, bias_rho; empty where there is none.
define(
    f"gated_linear_bwd(Tensor dy, Tensor dsums, Tensor x, {SCHEMA}, Tensor saved, {_DRAW}, "
    "bool need_dx) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
# The same with a step of Adam in place of the parameter gradients; returns dx.
define(
    f"gated_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, {MUTABLE_SCHEMA}, Tensor saved, "
    f"{_DRAW}, bool need_dx, {ADAM}) -> Tensor"
)

_bwd = torch.ops.fastlbbnn.gated_linear_bwd.default
_bwd_adam = torch.ops.fastlbbnn.gated_linear_bwd_adam.default
_fwd = torch.ops.fastlbbnn.gated_linear_fwd.default


def draw_size(kappa: Tensor, gated: bool, block: tuple[int, int]) -> int:
    """Elements that are stored of one draw; mirrored in ``csrc/cpu/gated_stack.cpp``."""
    rows, cols = kappa.shape
    gates = math.prod(reference.grid_shape(rows, cols, block)) if gated and block != (1, 1) else 0
    return rows * 2 * padded(cols) + gates


@fake("gated_linear_fwd")
def _(
    x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, block_rows, block_cols, temperature,
    hard, save,
):
    draw = draw_size(kappa, omega is not None, (block_rows, block_cols))
    saved = (samples, draw) if save and keeps_draws(x.device) else (0,)
    return (
        x.new_empty(samples, x.shape[-2], kappa.shape[0]),
        x.new_empty(5, dtype=torch.float32),
        x.new_empty(saved),
    )


@fake("gated_linear_bwd")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, saved, seed, samples, block_rows,
    block_cols, temperature, hard, need_dx,
):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    return (gradient_of(x if need_dx else None, x), *(gradient_of(p, x) for p in parameters))


@fake("gated_linear_bwd_adam")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, saved, seed, samples, block_rows,
    block_cols, temperature, hard, need_dx, exp_avg, exp_avg_sq, hyper,
):
    return gradient_of(x if need_dx else None, x)


class GatedLinearFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kappa: Tensor, rho: Tensor, omega: Tensor | None, bias_kappa: Tensor | None,
        bias_rho: Tensor | None, seed: Tensor, samples: int, block: tuple[int, int], temperature: float,
        hard: bool, single: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        layer = (kappa, rho, omega, bias_kappa, bias_rho)
        save = any(ctx.needs_input_grad[:6])
        y, sums, saved = _fwd(x, *layer, seed, samples, *block, temperature, hard, save)
        if save:
            ctx.save_for_backward(x, *layer, saved, seed)
            ctx.draw = (samples, *block, temperature, hard)
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsums: Tensor) -> Any:
        x, *layer, saved, seed = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:6]
        arguments = (dy, dsums, x, *layer, saved, seed, *ctx.draw, wanted[0])
        claimed = update.claim(layer, wanted[1:])
        if claimed is not None:
            adam, passed_on = claimed
            dx = _bwd_adam(*arguments, *adam)
            return (dx if wanted[0] else None, *passed_on, *(None,) * 6)
        with torch.no_grad():
            computed = _bwd(*arguments)
        grads = tuple(g if want else None for g, want in zip(computed, wanted))
        grads = differentiable_once("gated_linear", grads, (dy, dsums, x, *layer))
        return (*grads, *(None,) * 6)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], seed: Tensor, samples: int, block: tuple[int, int],
    temperature: float, hard: bool, single: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return GatedLinearFunction.apply(x, *layers[0], seed, samples, block, temperature, hard, single)


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], seed: Tensor, samples: int, block: tuple[int, int],
    temperature: float, hard: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return reference.gated_linear(
        x, *layers[0], seed=seed, samples=samples, block=block, temperature=temperature, hard=hard
    )


#: Arguments: seed, samples, block, temperature, hard.
GATED_LINEAR = dispatch.Op("gated_linear", _fused, _reference)


def gated_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor | None = None,
    samples: int = 1,
    block: tuple[int, int] = (1, 1),
    temperature: float = 1.0,
    hard: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """A linear map with sampled, gated weights, and the five sums of its KL.

    ``w = g (kappa + softplus(rho) eps)`` with ``eps`` standard normal and the gates
    ``g = sigmoid((omega - logit(u)) / temperature)``, one uniform ``u`` per block; with ``hard`` the
    gates are 0 or 1, Bernoulli(sigmoid(omega)), and omega gets no gradient from the outputs.

    Args:
        x: inputs ``[M, K]``, shared by all samples, or ``[samples, M, K]``, in the parameters' dtype or
            in bfloat16 or float16 beside float32 parameters. Within ``torch.autocast`` float32 inputs are
            converted to its dtype.
        kappa, rho: means and untransformed scales ``[N, K]``.
        omega: logits of the indicators, ``[ceil(N/block[0]), ceil(K/block[1])]``; None: no gates.
        bias_kappa, bias_rho: the same for biases ``[N]``, which are never gated.
        seed: int64 tensor of one element that fixes all noise; drawn if None.
        backend: "auto", "triton", "cpp" or "reference"; None: what ``use_backend`` says.

    Returns:
        Outputs ``[samples, M, N]`` in the dtype of x, and the sums H, A, A_w, T, S as a tensor ``[5]``.
        Gradients have the dtypes of what they belong to. (Beside float32 parameters, an x in half precision
        is multiplied in it on a GPU and summed in float32; on a CPU it is computed with in float32.)

    Raises:
        ValueError: a parameter holds NaN or infinity; it says which and where. On a GPU nothing is looked
            at (that would wait for the device at every layer) and outputs and sums come out as NaN, except
            within ``torch.autograd.detect_anomaly()``, where it raises there too.
    """
    check_block(block)
    check_samples(samples)
    if not hard:
        check_temperature(temperature)
    layer = LayerParameters(kappa, rho, omega, bias_kappa, bias_rho)
    check_parameters(layer, block)
    x, seed = dispatch.checked(x, kappa, samples, seed)
    return dispatch.call(
        GATED_LINEAR, x, (layer,), seed, samples, tuple(block), float(temperature), hard, backend=backend
    )
