"""``fastlbbnn::gated_linear_*``: sampled, gated weights and a linear map, forward and backward."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..reference.sums import grid_shape
from . import update as in_pass
from .library import (
    ADAM,
    MUTABLE_PARAMETERS,
    PARAMETERS,
    define,
    differentiable_once,
    empty_like,
    keeps_draws,
    padded,
)

_DRAW = (
    "Tensor seed, int samples, int block_rows, int block_cols, float temperature, bool hard"
)

# y [S, M, N], sums [5] in float32, and what the pass keeps for the backward one: on a CPU
# saved [S, draw], of each draw the rows of weights and eps, [N, 2, padded K], and for blocks the gates;
# on a GPU nothing.
define(f"gated_linear_fwd(Tensor x, {PARAMETERS}, {_DRAW}, bool save) -> (Tensor, Tensor, Tensor)")
# Gradients of x, kappa, rho, omega, bias_kappa, bias_rho; empty where there is none.
define(
    f"gated_linear_bwd(Tensor dy, Tensor dsums, Tensor x, {PARAMETERS}, Tensor saved, {_DRAW}, "
    "bool need_dx) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
# The same with a step of Adam in place of the parameter gradients; returns dx.
define(
    f"gated_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, {MUTABLE_PARAMETERS}, Tensor saved, "
    f"{_DRAW}, bool need_dx, {ADAM}) -> Tensor"
)


_gated_linear_bwd = torch.ops.fastlbbnn.gated_linear_bwd.default
_gated_linear_bwd_adam = torch.ops.fastlbbnn.gated_linear_bwd_adam.default
_gated_linear_fwd = torch.ops.fastlbbnn.gated_linear_fwd.default

def draw_size(kappa: Tensor, gated: bool, block: tuple[int, int]) -> int:
    """Elements that are stored of one draw; mirrored in ``csrc/cpu/gated_stack.cpp``."""
    rows, cols = kappa.shape
    gates = math.prod(grid_shape(rows, cols, block)) if gated and block != (1, 1) else 0
    return rows * 2 * padded(cols) + gates


@torch.library.register_fake("fastlbbnn::gated_linear_fwd")
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


@torch.library.register_fake("fastlbbnn::gated_linear_bwd")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, saved, seed, samples, block_rows,
    block_cols, temperature, hard, need_dx,
):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    return (empty_like(x if need_dx else None, x), *(empty_like(p, x) for p in parameters))


@torch.library.register_fake("fastlbbnn::gated_linear_bwd_adam")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, saved, seed, samples, block_rows,
    block_cols, temperature, hard, need_dx, exp_avg, exp_avg_sq, hyper,
):
    return empty_like(x if need_dx else None, x)


class GatedLinearFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already.

    ``single`` leaves out the sample axis of a single draw (a view outside would cost every layer of
    every training step one more node in the graph).
    """

    @staticmethod
    def forward(
        ctx, x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, block, temperature, hard,
        single,
    ):
        parameters = (kappa, rho, omega, bias_kappa, bias_rho)
        save = any(ctx.needs_input_grad[:6])
        y, sums, saved = _gated_linear_fwd(
            x, *parameters, seed, samples, *block, temperature, hard, save
        )
        if save:
            ctx.save_for_backward(x, *parameters, saved, seed)
            ctx.draw = (samples, *block, temperature, hard)
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx, dy: Tensor, dsums: Tensor):
        x, kappa, rho, omega, bias_kappa, bias_rho, saved, seed = ctx.saved_tensors
        parameters = (kappa, rho, omega, bias_kappa, bias_rho)
        need_dx = ctx.needs_input_grad[0]
        arguments = (
            dy, dsums, x, *parameters, saved, seed, *ctx.draw, need_dx,
        )
        claimed = in_pass.claim(parameters, ctx.needs_input_grad[1:6])
        if claimed is not None:
            adam, passed_on = claimed
            dx = _gated_linear_bwd_adam(*arguments, *adam)
            return (dx if need_dx else None, *passed_on, *(None,) * 6)
        with torch.no_grad():
            grads = _gated_linear_bwd(*arguments)
        wanted = ctx.needs_input_grad[:6]
        grads = tuple(g if want else None for g, want in zip(grads, wanted))
        grads = differentiable_once("gated_linear", grads, (dy, dsums, x, *parameters))
        return (*grads, *(None,) * 6)
