"""Runs the backward kernels on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import launch
from .configs import choose, precision, splits_for
from .gated_linear_backward import (
    _finish_dx_kernel,
    _gated_linear_bwd_input_kernel,
    _gated_linear_bwd_params_kernel,
)
from .launch import (
    CHUNK,
    ELEMENTWISE_TILE,
    WORKSPACE_BYTES,
    Layer,
    block_gates,
    cdiv,
    plan,
    sample_weights,
)
from .parameters_backward import _bias_bwd_kernel, _block_omega_kernel

_NO_NUMBERS = (0.0,) * 6


@dataclass
class Sink:
    """Where the gradient of one parameter goes: to ``target``, or with Adam's state into the
    parameter, which then is the target."""

    target: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    numbers: tuple[float, ...] = _NO_NUMBERS
    update: bool = True

    @property
    def state(self) -> tuple[Tensor, Tensor]:
        return self.exp_avg, self.exp_avg_sq


@dataclass
class Sinks:
    """Of kappa, rho, omega, bias_kappa and bias_rho; None where the layer has none."""

    adam: bool
    of: list[Sink | None] = field(default_factory=list)

    @staticmethod
    def gradients(parameters: Sequence[Tensor | None]) -> Sinks:
        def new(p: Tensor) -> Sink:
            target = launch.allocate(tuple(p.shape), p.dtype, p.device)
            return Sink(target, target, target)

        return Sinks(False, [None if p is None else new(p) for p in parameters])

    @staticmethod
    def steps(
        parameters: Sequence[Tensor | None],
        exp_avg: Sequence[Tensor],
        exp_avg_sq: Sequence[Tensor],
        hyper: Sequence[float],
    ) -> Sinks:
        """hyper: lr, beta1, beta2, eps and the step's number of each; empty state: not trained."""
        sinks: list[Sink | None] = []
        for i, (p, m, v) in enumerate(zip(parameters, exp_avg, exp_avg_sq)):
            if p is None:
                sinks.append(None)
            elif m.numel() == 0:
                sinks.append(Sink(p, p, p, update=False))
            else:
                if not (p.is_contiguous() and m.is_contiguous() and v.is_contiguous()):
                    raise RuntimeError("fastlbbnn: Adam in the backward pass: not contiguous")
                lr, beta1, beta2, eps, step = hyper[5 * i : 5 * i + 5]
                numbers = (
                    1.0 - beta1, beta2, 1.0 - beta2, lr / (1.0 - beta1**step),
                    1.0 / math.sqrt(1.0 - beta2**step), eps,
                )  # fmt: skip
                sinks.append(Sink(p, m, v, numbers))
        return Sinks(True, sinks)

    def weights(self) -> tuple[Sink, Sink, Sink]:
        kappa, rho, omega = self.of[:3]
        return kappa, rho, kappa if omega is None else omega

    def tensors(self, like: Tensor) -> tuple[Tensor, ...]:
        """The gradients; empty where the layer has none."""
        return tuple(like.new_empty(0) if s is None else s.target for s in self.of)


@dataclass(frozen=True)
class Cut:
    """How one axis of the weights is cut into tiles along blocks."""

    span: int  # whole blocks of one tile, or of ``pieces`` tiles
    pieces: int
    out: int  # padded number of block sums of a tile

    @staticmethod
    def of(size: int, block: int, gates: int, aligned: bool) -> Cut:
        """``aligned``: tiles start at multiples of four, up to three before their first block."""
        if gates != 2:
            return Cut(size, 1, 1)
        slack = 3 if aligned and block % 4 and size % block else 0
        blocks = max(1, (size - slack) // block)
        span = blocks * block
        if blocks == 1:
            out = 1
        elif span == size:
            out = blocks
        else:
            out = max(16, 1 << (blocks - 1).bit_length())
            # A product of float32 sums is not a reshape, even where the sizes would allow it.
            out = 2 * out if out * block == size else out
        return Cut(span, cdiv(span + slack, size), out)

    def tiles(self, length: int) -> int:
        return cdiv(length, self.span) * self.pieces


def gated_linear_bwd_params(
    dy: Tensor, dsums: Tensor, x: Tensor, layer: Layer, gates: Tensor, sinks: Sinks
) -> None:
    """Gradients of kappa, rho and omega. dy: [S, M, N]; an empty batch leaves those of the sums."""
    M, N, K = x.shape[-2], layer.N, layer.K
    samples = layer.samples if M > 0 else 0
    tile = choose("gated_linear_bwd_params", layer.device, x.dtype, (M, N, K)).tile
    rows = Cut.of(tile.BN, layer.block[0], layer.gates, aligned=False)
    cols = Cut.of(tile.BK, layer.block[1], layer.gates, aligned=True)
    kappa, rho, omega = sinks.weights()
    domega = omega.target
    if layer.gates == 2:
        domega = layer.new(rows.pieces * cols.pieces, *layer.grid)
    programs = rows.tiles(N) * cols.tiles(K)
    if programs:
        _gated_linear_bwd_params_kernel[(programs,)](
            kappa.target, rho.target, domega, dy, dsums, x, layer.kappa, layer.rho,
            layer.of(layer.omega), gates, layer.seed, *kappa.state, *rho.state, *omega.state,
            samples, M, N, K, layer.stride_between(x), *layer.grid,
            0.0 if layer.hard else layer.inv_temperature,
            *kappa.numbers, *rho.numbers, *omega.numbers, **layer.indicators(),
            BLOCK_ROWS=layer.block[0], BLOCK_COLS=layer.block[1], ROW_SPAN=rows.span,
            COL_SPAN=cols.span, ROW_PIECES=rows.pieces, COL_PIECES=cols.pieces,
            ROWS_OUT=rows.out, COLS_OUT=cols.out, ADAM=sinks.adam, UPDATE_KAPPA=kappa.update,
            UPDATE_RHO=rho.update, UPDATE_OMEGA=omega.update, PRECISION=precision(x.dtype),
            **tile.blocks(), **tile.options(),
        )  # fmt: skip
    if layer.gates == 2:
        size = math.prod(layer.grid)
        _block_omega_kernel[(cdiv(size, CHUNK),)](
            omega.target, domega, dsums, layer.omega, *omega.state, domega.shape[0], size,
            *omega.numbers, ADAM=sinks.adam, UPDATE_OMEGA=omega.update, CHUNK=CHUNK,
            **ELEMENTWISE_TILE.options(),
        )  # fmt: skip


def bias_bwd(
    by_mean: Tensor, by_var: Tensor | None, dsums: Tensor, layer: Layer, sinks: Sinks
) -> None:
    """Gradients of the biases from sums over the batch: by_mean [S, N], or by_mean, by_var [N]."""
    kappa, rho = sinks.of[3:]
    if kappa is None:
        return
    _bias_bwd_kernel[(cdiv(layer.N, CHUNK),)](
        kappa.target, rho.target, by_mean, by_mean if by_var is None else by_var, dsums,
        layer.bias_kappa, layer.bias_rho, layer.seed, *kappa.state, *rho.state, layer.samples,
        layer.N, *kappa.numbers, *rho.numbers, LOCAL=by_var is not None, ADAM=sinks.adam,
        UPDATE_KAPPA=kappa.update, UPDATE_RHO=rho.update, CHUNK=CHUNK,
        **ELEMENTWISE_TILE.options(),
    )  # fmt: skip


def gated_linear_bwd_input(
    dy: Tensor, layer: Layer, gates: Tensor, shared: bool, hidden: Tensor | None
) -> Tensor:
    """dx [S, M, K], summed over samples that share x [M, K]; through a ReLU's output ``hidden``."""
    S, M, N, K = layer.samples, dy.shape[-2], layer.N, layer.K
    outputs = 1 if shared else S
    dx = layer.new(*(() if shared else (S,)), M, K, dtype=dy.dtype)
    if dx.numel() == 0:
        return dx
    choice, staged = plan("gated_linear_bwd_input", layer, dy.dtype, M)
    tile = choice.tile
    slab = K
    if staged:
        fit = WORKSPACE_BYTES // max(1, S * N * dy.element_size())
        slab = min(K, max(1, fit // tile.BK) * tile.BK)
    programs = cdiv(slab, tile.BK) * cdiv(M, tile.BM) * outputs
    splits = choice.splits or splits_for(programs, cdiv(N, tile.BN), layer.device)
    target = dx if splits == 1 else layer.new(splits, outputs, M, K)
    masked = hidden is not None
    for first in range(0, K, slab):
        cols = min(slab, K - first)
        weights = dy
        if staged:
            weights, _ = sample_weights(layer, gates, (0, N), (first, cols), dy.dtype, False)
        grid = cdiv(cols, tile.BK) * cdiv(M, tile.BM) * outputs * splits
        _gated_linear_bwd_input_kernel[(grid,)](
            target, dy, hidden if masked else dy, weights, layer.kappa, layer.rho,
            layer.of(layer.omega), gates, layer.seed, S, M, N, K, first, cols, splits,
            *layer.indicator_arguments(), **layer.indicators(), SHARED=shared, MASKED=masked,
            STAGED=staged, SPLIT=splits > 1, PRECISION=precision(dy.dtype), **tile.blocks(),
            **tile.options(),
        )  # fmt: skip
    if splits > 1:
        finish_dx(dx, target, hidden)
    return dx


def finish_dx(dx: Tensor, parts: Tensor, hidden: Tensor | None) -> None:
    _finish_dx_kernel[(cdiv(dx.numel(), CHUNK),)](
        dx, parts, dx if hidden is None else hidden, dx.numel(), parts.shape[0],
        MASKED=hidden is not None, CHUNK=CHUNK, **ELEMENTWISE_TILE.options(),
    )  # fmt: skip


def gated_linear_bwd(
    dy: Tensor,
    dsums: Tensor,
    x: Tensor,
    layer: Layer,
    need_dx: bool,
    sinks: Sinks,
    hidden: Tensor | None = None,
) -> Tensor:
    """dx (empty unless needed), and all parameter gradients into ``sinks``. dy: [S, M, N]."""
    x, dsums = x.contiguous(), dsums.contiguous()
    # A single draw may come without its sample axis.
    dy = dy.contiguous().view(layer.samples, x.shape[-2], layer.N)
    gates, _ = block_gates(layer, draw=True)
    # dx before the parameters: a step of Adam changes them.
    dx = x.new_empty(0)
    if need_dx:
        dx = gated_linear_bwd_input(dy, layer, gates, x.dim() == 2, hidden)
    gated_linear_bwd_params(dy, dsums, x, layer, gates, sinks)
    bias_bwd(dy.sum(1, dtype=torch.float32), None, dsums, layer, sinks)
    return dx


def kl_sums_bwd(dsums: Tensor, layer: Layer, sinks: Sinks) -> None:
    """Gradients of the sums alone: those of an empty batch, with ``layer.samples`` = 0."""
    nothing, dsums = layer.new(0, layer.K), dsums.contiguous()
    gated_linear_bwd_params(nothing, dsums, nothing, layer, layer.kappa, sinks)
    bias_bwd(nothing, None, dsums, layer, sinks)
