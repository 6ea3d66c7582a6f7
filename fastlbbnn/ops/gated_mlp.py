"""``fastlbbnn::gated_mlp_*``: a stack of gated linear layers with ReLU between them, as one operator."""

from __future__ import annotations

import torch
from torch import Tensor

from . import update as in_pass
from .gated_linear import draw_size
from .library import define, differentiable_once, keeps_draws

_DRAW = "Tensor seeds, int samples, int[] blocks, float[] temperatures, bool hard"

# parameters: kappa, rho, omega, bias_kappa, bias_rho of every layer, empty where there is none.
# y [S, M, N], sums [layers, 5], saved: the draws of all layers (as in gated_linear_fwd; on a GPU not),
# then the hidden activations [S, M, N].
define(
    f"gated_mlp_fwd(Tensor x, Tensor[] parameters, {_DRAW}, bool save) -> (Tensor, Tensor, Tensor[])"
)
# dx, then the gradients of all parameters in their order.
define(
    "gated_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, Tensor[] parameters, Tensor[] saved, "
    f"{_DRAW}, bool need_dx) -> Tensor[]"
)
define(
    "gated_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor(a!)[] parameters, Tensor[] saved, "
    f"{_DRAW}, bool need_dx, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, float[] hyper) -> Tensor"
)

_gated_mlp_bwd = torch.ops.fastlbbnn.gated_mlp_bwd.default
_gated_mlp_bwd_adam = torch.ops.fastlbbnn.gated_mlp_bwd_adam.default
_gated_mlp_fwd = torch.ops.fastlbbnn.gated_mlp_fwd.default


@torch.library.register_fake("fastlbbnn::gated_mlp_fwd")
def _(x, parameters, seeds, samples, blocks, temperatures, hard, save):
    layers = len(temperatures)
    draws, outputs = [], []
    for l in range(layers):
        kappa, _, omega, _, _ = parameters[5 * l : 5 * l + 5]
        gated = omega.numel() > 0
        if keeps_draws(x.device):
            size = draw_size(kappa, gated, (blocks[2 * l], blocks[2 * l + 1]))
            draws.append(x.new_empty(samples, size))
        outputs.append(x.new_empty(samples, x.shape[-2], kappa.shape[0]))
    saved = [*draws, *outputs[:-1]] if save else []
    return outputs[-1], x.new_empty(layers, 5, dtype=torch.float32), saved


@torch.library.register_fake("fastlbbnn::gated_mlp_bwd")
def _(dy, dsums, x, parameters, saved, seeds, samples, blocks, temperatures, hard, need_dx):
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    return [dx, *(torch.empty_like(p) for p in parameters)]


@torch.library.register_fake("fastlbbnn::gated_mlp_bwd_adam")
def _(
    dy, dsums, x, parameters, saved, seeds, samples, blocks, temperatures, hard, need_dx, exp_avg,
    exp_avg_sq, hyper,
):
    return torch.empty_like(x) if need_dx else x.new_empty(0)


class GatedMLPFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already.

    ``draw`` is (samples, blocks, temperatures, hard); ``single`` leaves out the sample axis of a single
    draw; ``parameters`` are five a layer, None where there is none.
    """

    @staticmethod
    def forward(ctx, x, seeds, draw, single, *parameters):
        save = any(ctx.needs_input_grad)
        given = [x.new_empty(0) if p is None else p for p in parameters]
        y, sums, saved = _gated_mlp_fwd(x, given, seeds, *draw, save)
        if save:
            ctx.save_for_backward(x, seeds, *parameters, *saved)
            ctx.draw = draw
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx, dy: Tensor, dsums: Tensor):
        x, seeds, *rest = ctx.saved_tensors
        count = 5 * len(ctx.draw[2])
        parameters, saved = tuple(rest[:count]), rest[count:]
        need_dx = ctx.needs_input_grad[0]
        trained = ctx.needs_input_grad[4:]
        given = [x.new_empty(0) if p is None else p for p in parameters]
        arguments = (dy, dsums, x, given, saved, seeds, *ctx.draw, need_dx)
        claimed = in_pass.claim(parameters, trained)
        if claimed is not None:
            adam, passed_on = claimed
            dx = _gated_mlp_bwd_adam(*arguments, *adam)
            return (dx if need_dx else None, None, None, None, *passed_on)
        with torch.no_grad():
            dx, *grads = _gated_mlp_bwd(*arguments)
        grads = (dx if need_dx else None, *(g if t else None for g, t in zip(grads, trained)))
        dx, *grads = differentiable_once("gated_mlp", grads, (dy, dsums, x, *parameters))
        return (dx, None, None, None, *grads)
