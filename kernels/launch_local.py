"""Runs the kernels of local reparametrisation on tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .configs import choose, precision, splits_for
from .launch import CHUNK, ELEMENTWISE_TILE, FINISH_TILE, Layer, cdiv, finish_sums, kl_sums_fwd
from .launch_backward import Sinks, bias_bwd, finish_dx
from .local_linear import (
    _local_finish_kernel,
    _local_linear_bwd_input_kernel,
    _local_linear_bwd_params_kernel,
    _local_linear_fwd_kernel,
    _local_upstream_kernel,
)


def _precisions(dtype: torch.dtype) -> dict[str, str]:
    """Of the products for the mean and, whose operands are float32 for float16, the variance."""
    tf32 = dtype == torch.float16 and torch.version.hip is None
    return {"PRECISION": precision(dtype), "VAR_PRECISION": "tf32" if tf32 else precision(dtype)}


def local_linear_fwd(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """y [S, M, N], the sums [5], and eps / (2 std) [S, M, N] for the backward pass, float32."""
    x = x.contiguous()
    S, M, N, K = layer.samples, x.shape[-2], layer.N, layer.K
    shared = x.dim() == 2
    rows = M if shared else S * M
    y, ratio = layer.new(S, M, N, dtype=x.dtype), layer.new(S, M, N)
    if y.numel() == 0:
        return y, kl_sums_fwd(layer), ratio
    choice = choose("local_linear_fwd", layer.device, x.dtype, (rows, N, K))
    tile, n_tiles = choice.tile, cdiv(N, choice.tile.BN)
    programs = n_tiles * cdiv(rows, tile.BM)
    splits = choice.splits or splits_for(programs, cdiv(K, tile.BK), layer.device)
    partials = layer.new(n_tiles * splits, 4)
    parts = layer.new(splits, 2, rows, N)
    _local_linear_fwd_kernel[(programs * splits,)](
        parts, partials, x, layer.kappa, layer.rho, layer.of(layer.omega), rows, N, K, splits,
        GATES=layer.gates, **_precisions(x.dtype), **tile.blocks(), **tile.options(),
    )  # fmt: skip
    small = FINISH_TILE
    _local_finish_kernel[(cdiv(rows, small.BM) * cdiv(N, small.BN),)](
        y, ratio, parts, layer.of(layer.bias_kappa), layer.of(layer.bias_rho), layer.seed, S, rows,
        M, N, splits, HAS_BIAS=layer.bias_kappa is not None, SHARED=shared,
        **small.blocks("BM BN"), **small.options(),
    )  # fmt: skip
    return y, finish_sums(layer, partials, layer.kappa), ratio


def local_linear_bwd(
    dy: Tensor,
    dsums: Tensor,
    x: Tensor,
    layer: Layer,
    ratio: Tensor,
    need_dx: bool,
    sinks: Sinks,
) -> Tensor:
    """dx (empty unless needed), and all parameter gradients into ``sinks``."""
    x, dsums, ratio = x.contiguous(), dsums.contiguous(), ratio.contiguous()
    # A single draw may come without its sample axis.
    dy = dy.contiguous().view(layer.samples, x.shape[-2], layer.N)
    M, N, K = x.shape[-2], layer.N, layer.K
    rows, summed = (M, layer.samples) if x.dim() == 2 else (layer.samples * M, 1)
    weights = (layer.kappa, layer.rho, layer.of(layer.omega))
    # Squares of float16 need the range of float32.
    var_type = torch.float32 if x.dtype == torch.float16 else x.dtype
    dmean, dvar = layer.new(rows, N, dtype=x.dtype), layer.new(rows, N, dtype=var_type)
    if dmean.numel():
        _local_upstream_kernel[(cdiv(dmean.numel(), CHUNK),)](
            dmean, dvar, dy, ratio, summed, dmean.numel(), CHUNK=CHUNK,
            **ELEMENTWISE_TILE.options(),
        )  # fmt: skip
    # dx before the parameters: a step of Adam changes them.
    dx = layer.new(*x.shape, dtype=x.dtype) if need_dx else x.new_empty(0)
    if need_dx and x.numel():
        choice = choose("local_linear_bwd_input", layer.device, x.dtype, (rows, N, K))
        tile = choice.tile
        programs = cdiv(K, tile.BK) * cdiv(rows, tile.BM)
        splits = choice.splits or splits_for(programs, cdiv(N, tile.BN), layer.device)
        target = dx if splits == 1 else layer.new(splits, rows, K)
        _local_linear_bwd_input_kernel[(programs * splits,)](
            target, dmean, dvar, x, *weights, rows, N, K, splits, GATES=layer.gates,
            SPLIT=splits > 1, **_precisions(x.dtype), **tile.blocks(), **tile.options(),
        )  # fmt: skip
        if splits > 1:
            finish_dx(dx, target, None)

    tile = choose("local_linear_bwd_params", layer.device, x.dtype, (rows, N, K)).tile
    kappa, rho, omega = sinks.weights()
    programs = cdiv(N, tile.BN) * cdiv(K, tile.BK)
    if programs:
        _local_linear_bwd_params_kernel[(programs,)](
            kappa.target, rho.target, omega.target, dmean, dvar, dsums, x, *weights, *kappa.state,
            *rho.state, *omega.state, rows, N, K, *kappa.numbers, *rho.numbers,
            *omega.numbers, GATES=layer.gates, ADAM=sinks.adam, UPDATE_KAPPA=kappa.update,
            UPDATE_RHO=rho.update, UPDATE_OMEGA=omega.update, **_precisions(x.dtype),
            **tile.blocks(), **tile.options(),
        )  # fmt: skip
    if layer.bias_kappa is not None:
        upstream = dy.float()
        by_var = (upstream * ratio).sum((0, 1))
        bias_bwd(upstream.sum((0, 1)), by_var, dsums, layer, sinks)
    return dx
