"""``fastlbbnn::kl_sums_*``: the five sums of a layer without a draw."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import PARAMETERS, define, differentiable_once, empty_like

define(f"kl_sums_fwd({PARAMETERS}, int block_rows, int block_cols) -> Tensor")
define(
    f"kl_sums_bwd(Tensor dsums, {PARAMETERS}, int block_rows, int block_cols) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


_kl_sums_bwd = torch.ops.fastlbbnn.kl_sums_bwd.default
_kl_sums_fwd = torch.ops.fastlbbnn.kl_sums_fwd.default

@torch.library.register_fake("fastlbbnn::kl_sums_fwd")
def _(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols):
    return kappa.new_empty(5, dtype=torch.float32)


@torch.library.register_fake("fastlbbnn::kl_sums_bwd")
def _(dsums, kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols):
    return tuple(empty_like(p, kappa) for p in (kappa, rho, omega, bias_kappa, bias_rho))


class KLSumsFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already."""

    @staticmethod
    def forward(ctx, kappa, rho, omega, bias_kappa, bias_rho, block):
        parameters = (kappa, rho, omega, bias_kappa, bias_rho)
        ctx.save_for_backward(*parameters)
        ctx.block = block
        return _kl_sums_fwd(*parameters, *block)

    @staticmethod
    def backward(ctx, dsums: Tensor):
        parameters = ctx.saved_tensors
        with torch.no_grad():
            grads = _kl_sums_bwd(dsums, *parameters, *ctx.block)
        grads = tuple(g if want else None for g, want in zip(grads, ctx.needs_input_grad))
        grads = differentiable_once("kl_sums", grads, (dsums, *parameters))
        return (*grads, None)
