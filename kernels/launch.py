"""Runs the kernels on tensors: shapes to grids, choices to launches. No autograd and no checks
here.

Functions take a ``Layer`` and return what the operators of the same name return.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .configs import Choice, Tile, choose, precision, splits_for
from .gated_linear import _finish_outputs_kernel, _gated_linear_fwd_kernel, _gated_weights_kernel
from .kl_sums import _block_gates_kernel, _kl_finish_kernel

#: Bytes of sampled weights that are staged at a time: they should stay in L2 (40 MB on an A100).
WORKSPACE_BYTES = 16 << 20

#: Weights to sample again below which a second launch costs more (see gated_linear.py: 4 us / 13
#: ps).
STAGE_FROM = 200_000

#: Elementwise kernels, which no table lists: one size suits them. Indicators of blocks cost a Philox
#: each, twice, and take registers.
ELEMENTWISE_TILE = Tile(0, 32, 64, 4, 1)
BLOCKS_TILE = Tile(0, 16, 64, 4, 1)
SUMS_TILE = Tile(0, 32, 64, 4, 1, maxnreg=255)
FINISH_TILE = Tile(16, 64, 0, 4, 1)
CHUNK = 1024


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that a kernel writes: all of it goes through here, so that tests can fence it in."""
    return torch.empty(shape, dtype=dtype, device=device)


@dataclass
class Layer:
    """Parameters [N, K] row by row, indicators' grid, and the draw to make."""

    kappa: Tensor
    rho: Tensor
    omega: Tensor | None
    bias_kappa: Tensor | None
    bias_rho: Tensor | None
    seed: Tensor | None = None  # None: nothing is drawn
    samples: int = 1
    block: tuple[int, int] = (1, 1)
    inv_temperature: float = 1.0
    hard: bool = False

    def __post_init__(self) -> None:
        for name in ("kappa", "rho", "omega", "bias_kappa", "bias_rho"):
            t = getattr(self, name)
            if t is not None:
                setattr(self, name, t.detach().contiguous())
        if self.seed is None:
            self.seed = torch.empty(1, dtype=torch.int64, device=self.device)
        self.N, self.K = self.kappa.shape
        self.grid = (cdiv(self.N, self.block[0]), cdiv(self.K, self.block[1]))
        # Numbers of posterior.py.
        self.gates = 0 if self.omega is None else 1 if self.block == (1, 1) else 2

    @property
    def device(self) -> torch.device:
        return self.kappa.device

    def of(self, t: Tensor | None) -> Tensor:
        """A pointer for the kernel, which does not follow it where the layer has none."""
        return self.kappa if t is None else t

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return allocate(shape, dtype, self.device)

    def stride_between(self, x: Tensor) -> int:
        """Elements from one sample's x to the next one's; 0 where there is one x, of any batch (see compiled.py)."""
        return 0 if x.dim() == 2 or self.samples == 1 else x.shape[-2] * self.K

    def indicator_arguments(self) -> tuple:
        return (*self.grid, *self.block, self.inv_temperature)

    def indicators(self) -> dict:
        return {"GATES": self.gates, "HARD": self.hard}


def block_gates(layer: Layer, draw: bool) -> tuple[Tensor, Tensor]:
    """Gates [S, grid] of blocks, and partial sums [tiles, 2]; dummies for other indicators."""
    if layer.gates != 2:
        return layer.kappa, layer.kappa
    tile, (rows, cols) = BLOCKS_TILE, layer.grid
    tiles = cdiv(rows, tile.BN) * cdiv(cols, tile.BK)
    gates = layer.new(layer.samples, rows, cols) if draw else layer.kappa
    partials = layer.new(tiles, 2)
    _block_gates_kernel[(tiles,)](
        gates, partials, layer.omega, layer.seed, layer.samples, *layer.indicator_arguments(),
        HARD=layer.hard, DRAW=draw, **tile.blocks("BN BK"), **tile.options(),
    )  # fmt: skip
    return gates, partials


def finish_sums(layer: Layer, partials: Tensor, block_partials: Tensor) -> Tensor:
    sums = layer.new(5)
    _kl_finish_kernel[(1,)](
        sums, partials, block_partials, layer.of(layer.bias_kappa), layer.of(layer.bias_rho),
        partials.shape[0], block_partials.shape[0], layer.N, float(layer.N * layer.K),
        float(layer.N), GATES=layer.gates, HAS_BIAS=layer.bias_kappa is not None, CHUNK=CHUNK,
        **SUMS_TILE.options(),
    )  # fmt: skip
    return sums


def sample_weights(
    layer: Layer,
    gates: Tensor,
    rows: tuple[int, int],
    cols: tuple[int, int],
    dtype: torch.dtype | None,
    with_sums: bool,
) -> tuple[Tensor, Tensor]:
    """Draws [S, rows, cols] of a part of the weights (none if dtype is None), and partial sums."""
    tile = ELEMENTWISE_TILE
    (first_row, row_count), (first_col, col_count) = rows, cols
    tiles = cdiv(row_count, tile.BN) * cdiv(col_count, tile.BK)
    samples = layer.samples if dtype is not None else 1
    weights = layer.kappa
    if dtype is not None:
        weights = layer.new(samples, row_count, col_count, dtype=dtype)
    partials = layer.new(tiles, 4) if with_sums else layer.kappa
    if tiles:
        _gated_weights_kernel[(tiles * samples,)](
            weights, partials, layer.kappa, layer.rho, layer.of(layer.omega), gates, layer.seed,
            samples, layer.K, first_row, row_count, first_col, col_count,
            *layer.indicator_arguments(), **layer.indicators(), DRAW=dtype is not None,
            SUMS=with_sums, **tile.blocks("BN BK"), **tile.options(),
        )  # fmt: skip
    return weights, partials


def kl_sums_fwd(layer: Layer) -> Tensor:
    gates, block_partials = block_gates(layer, draw=False)
    _, partials = sample_weights(layer, gates, (0, layer.N), (0, layer.K), None, True)
    return finish_sums(layer, partials, block_partials)


def plan(kernel: str, layer: Layer, dtype: torch.dtype, batch: int) -> tuple[Choice, bool]:
    """The choice for a product with sampled weights, and whether these are staged (see above)."""
    shape = (batch, layer.N, layer.K)
    choice = choose(kernel, layer.device, dtype, shape)
    staged = choice.staged
    if staged is None:
        again = cdiv(batch, choice.tile.BM) - 1
        staged = again * layer.samples * layer.N * layer.K > STAGE_FROM
    if staged:
        choice = choose(f"{kernel}_staged", layer.device, dtype, shape)
    return choice, staged


def gated_linear_fwd(x: Tensor, layer: Layer, relu: bool = False) -> tuple[Tensor, Tensor]:
    """y [S, M, N] of x [M, K] or [S, M, K], and the sums [5]."""
    x = x.contiguous()
    S, M, N, K = layer.samples, x.shape[-2], layer.N, layer.K
    y = layer.new(S, M, N, dtype=x.dtype)
    if y.numel() == 0:
        return y, kl_sums_fwd(layer)
    choice, staged = plan("gated_linear_fwd", layer, x.dtype, M)
    tile = choice.tile
    gates, block_partials = block_gates(layer, draw=True)
    # Rows of weights that go through the workspace at a time, a multiple of the tile.
    slab = N
    if staged:
        fit = WORKSPACE_BYTES // max(1, S * K * x.element_size())
        slab = min(N, max(1, fit // tile.BN) * tile.BN)
    programs = cdiv(slab, tile.BN) * cdiv(M, tile.BM) * S
    splits = choice.splits or splits_for(programs, cdiv(K, tile.BK), layer.device)
    target = y if splits == 1 else layer.new(splits, S, M, N)
    partials = []
    for first in range(0, N, slab):
        rows = min(slab, N - first)
        n_tiles = cdiv(rows, tile.BN)
        weights = x
        if staged:
            weights, some = sample_weights(layer, gates, (first, rows), (0, K), x.dtype, True)
        else:
            some = layer.new(n_tiles * splits, 4)
        partials.append(some)
        _gated_linear_fwd_kernel[(n_tiles * cdiv(M, tile.BM) * S * splits,)](
            target, some, x, weights, layer.kappa, layer.rho, layer.of(layer.omega), gates,
            layer.of(layer.bias_kappa), layer.of(layer.bias_rho), layer.seed,
            S, M, N, K, layer.stride_between(x), first, rows, splits,
            *layer.indicator_arguments(), **layer.indicators(),
            HAS_BIAS=layer.bias_kappa is not None, RELU=relu, STAGED=staged, SPLIT=splits > 1,
            PRECISION=precision(x.dtype), **tile.blocks(), **tile.options(),
        )  # fmt: skip
    if splits > 1:
        finish_outputs(y, target, layer, layer.bias_kappa is not None, relu)
    stacked = partials[0] if len(partials) == 1 else torch.cat(partials)
    return y, finish_sums(layer, stacked, block_partials)


def finish_outputs(y: Tensor, parts: Tensor, layer: Layer, bias: bool, relu: bool) -> None:
    """y [S, M, N] = the sum over parts [splits, S, M, N], then bias and ReLU."""
    S, M, N = y.shape
    tile = FINISH_TILE
    _finish_outputs_kernel[(math.prod((cdiv(N, tile.BN), cdiv(M, tile.BM), S)),)](
        y, parts, layer.of(layer.bias_kappa), layer.of(layer.bias_rho), layer.seed, S, M, N,
        parts.shape[0], HAS_BIAS=bias, RELU=relu, **tile.blocks("BM BN"), **tile.options(),
    )  # fmt: skip
