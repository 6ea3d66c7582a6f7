"""``fastlbbnn::kl_sums_*``: the five sums of a layer without a draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._util.checks import check_block
from . import dispatch
from .checks import check_parameters
from .library import define, differentiable_once, fake, gradient_of
from .parameters import SCHEMA, LayerParameters

define(f"kl_sums_fwd({SCHEMA}, int block_rows, int block_cols) -> Tensor")
define(
    f"kl_sums_bwd(Tensor dsums, {SCHEMA}, int block_rows, int block_cols) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)

_bwd = torch.ops.fastlbbnn.kl_sums_bwd.default
_fwd = torch.ops.fastlbbnn.kl_sums_fwd.default


@fake("kl_sums_fwd")
def _(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols):
    return kappa.new_empty(5, dtype=torch.float32)


@fake("kl_sums_bwd")
def _(dsums, kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols):
    return tuple(gradient_of(p, kappa) for p in (kappa, rho, omega, bias_kappa, bias_rho))


class KLSumsFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already."""

    @staticmethod
    def forward(
        ctx: Any, kappa: Tensor, rho: Tensor, omega: Tensor | None, bias_kappa: Tensor | None,
        bias_rho: Tensor | None, block: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        layer = (kappa, rho, omega, bias_kappa, bias_rho)
        ctx.save_for_backward(*layer)
        ctx.block = block
        return _fwd(*layer, *block)

    @staticmethod
    def backward(ctx: Any, dsums: Tensor) -> Any:
        layer = ctx.saved_tensors
        with torch.no_grad():
            computed = _bwd(dsums, *layer, *ctx.block)
        grads = tuple(g if want else None for g, want in zip(computed, ctx.needs_input_grad))
        grads = differentiable_once("kl_sums", grads, (dsums, *layer))
        return (*grads, None)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], block: tuple[int, int], single: bool
) -> tuple[Tensor, Tensor]:
    return x, KLSumsFunction.apply(*layers[0], block)


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], block: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    return x, reference.kl_sums(*layers[0], block=block)


#: Arguments: block. There are no inputs: kappa stands for them.
KL_SUMS = dispatch.Op("kl_sums", _fused, _reference)


def kl_sums(
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    block: tuple[int, int] = (1, 1),
    backend: str | None = None,
) -> Tensor:
    """The five sums H, A, A_w, T, S of a layer as a tensor ``[5]``, without a draw."""
    check_block(block)
    layer = LayerParameters(kappa, rho, omega, bias_kappa, bias_rho)
    check_parameters(layer, block)
    return dispatch.call(KL_SUMS, kappa, (layer,), tuple(block), backend=backend)[1]
