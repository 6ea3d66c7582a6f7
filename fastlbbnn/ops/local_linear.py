"""``fastlbbnn::local_linear_*``: local reparametrisation, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from . import update as in_pass
from .library import (
    ADAM,
    MUTABLE_PARAMETERS,
    PARAMETERS,
    define,
    differentiable_once,
    empty_like,
    keeps_draws,
)

# y [S, M, N], sums [5], moments [2, N, K] (mean and variance weights; on a GPU empty, they are made
# again) and half_ratio [S, M, N]; all but y in float32.
define(
    f"local_linear_fwd(Tensor x, {PARAMETERS}, Tensor seed, int samples) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
define(
    f"local_linear_bwd(Tensor dy, Tensor dsums, Tensor x, {PARAMETERS}, Tensor moments, "
    "Tensor half_ratio, int samples, bool need_dx) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
define(
    f"local_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, {MUTABLE_PARAMETERS}, Tensor moments, "
    f"Tensor half_ratio, int samples, bool need_dx, {ADAM}) -> Tensor"
)


_local_linear_bwd = torch.ops.fastlbbnn.local_linear_bwd.default
_local_linear_bwd_adam = torch.ops.fastlbbnn.local_linear_bwd_adam.default
_local_linear_fwd = torch.ops.fastlbbnn.local_linear_fwd.default

@torch.library.register_fake("fastlbbnn::local_linear_fwd")
def _(x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples):
    rows, cols = kappa.shape
    shape = (samples, x.shape[-2], rows)
    moments = (2, rows, cols) if keeps_draws(x.device) else (0,)
    return (
        x.new_empty(shape),
        x.new_empty(5, dtype=torch.float32),
        x.new_empty(moments),
        x.new_empty(shape, dtype=torch.float32),
    )


@torch.library.register_fake("fastlbbnn::local_linear_bwd")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio, samples, need_dx
):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    return (empty_like(x if need_dx else None, x), *(empty_like(p, x) for p in parameters))


@torch.library.register_fake("fastlbbnn::local_linear_bwd_adam")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio, samples, need_dx,
    exp_avg, exp_avg_sq, hyper,
):
    return empty_like(x if need_dx else None, x)


class LocalLinearFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already.

    ``single`` leaves out the sample axis of a single draw (a view outside would cost every layer of
    every training step one more node in the graph).
    """

    @staticmethod
    def forward(ctx, x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, single):
        parameters = (kappa, rho, omega, bias_kappa, bias_rho)
        y, sums, moments, half_ratio = _local_linear_fwd(
            x, *parameters, seed, samples
        )
        ctx.save_for_backward(x, *parameters, moments, half_ratio)
        ctx.samples = samples
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx, dy: Tensor, dsums: Tensor):
        x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio = ctx.saved_tensors
        parameters = (kappa, rho, omega, bias_kappa, bias_rho)
        need_dx = ctx.needs_input_grad[0]
        arguments = (
            dy, dsums, x, *parameters, moments, half_ratio, ctx.samples,
            need_dx,
        )
        claimed = in_pass.claim(parameters, ctx.needs_input_grad[1:6])
        if claimed is not None:
            adam, passed_on = claimed
            dx = _local_linear_bwd_adam(*arguments, *adam)
            return (dx if need_dx else None, *passed_on, *(None,) * 3)
        with torch.no_grad():
            grads = _local_linear_bwd(*arguments)
        wanted = ctx.needs_input_grad[:6]
        grads = tuple(g if want else None for g, want in zip(grads, wanted))
        grads = differentiable_once("local_linear", grads, (dy, dsums, x, *parameters))
        return (*grads, None, None, None)
