"""Selected networks made by hand from random masks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import nn

import fastlbbnn
from fastlbbnn.nn import LBBNNLinear
from fastlbbnn.sparse import SparseLayer, SparseModel, SparseNetwork
from fastlbbnn.sparse.network import blocks_from_grid, index_dtype, row_offsets_of


def make_layer(
    rows: int, cols: int, *, density: float = 0.4, block: int = 1, relu: bool = True, seed: int = 0
) -> SparseLayer:
    g = np.random.default_rng(seed)
    kept = g.random((-(-rows // block), -(-cols // block))) < density
    mask = np.kron(kept, np.ones((block, block), bool))[:rows, :cols]
    weight = np.where(mask, g.standard_normal((rows, cols)), 0.0).astype(np.float32)
    at_row, at_col = np.nonzero(mask)
    return SparseLayer(
        rows=rows,
        cols=cols,
        row_offsets=row_offsets_of(at_row, rows),
        columns=at_col.astype(index_dtype(cols)),
        mean=weight[at_row, at_col],
        scale=None,
        bias_mean=g.standard_normal(rows).astype(np.float32),
        bias_scale=None,
        row_index=np.arange(rows, dtype=np.int32),
        relu=relu,
        block=(block, block),
        blocks=None if block == 1 else blocks_from_grid(weight, None, kept, (block, block)),
    )


def make_network(
    sizes: tuple[int, ...],
    *,
    densities: tuple[float, ...] | float = 0.4,
    blocks: tuple[int, ...] | int = 1,
    in_features: int | None = None,
    seed: int = 0,
) -> SparseNetwork:
    """``sizes``: used inputs, then the units of every layer. ReLU between layers."""
    count = len(sizes) - 1
    if isinstance(densities, float):
        densities = (densities,) * count
    if isinstance(blocks, int):
        blocks = (blocks,) * count
    layers = [
        make_layer(
            sizes[i + 1],
            sizes[i],
            density=densities[i],
            block=blocks[i],
            relu=i + 1 < count,
            seed=100 * seed + i,
        )
        for i in range(count)
    ]
    in_features = sizes[0] if in_features is None else in_features
    chosen = np.random.default_rng(seed).permutation(in_features)[: sizes[0]]
    inputs = np.sort(chosen).astype(np.int32)
    return SparseNetwork(layers=layers, inputs=inputs, in_features=in_features)


def make_selected(sizes: tuple[int, ...], seed: int = 3) -> SparseModel:
    """What ``select`` leaves of a network whose indicators are random, about a fifth of them in."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        modules += [LBBNNLinear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*modules[:-1])
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shift = -0.84 if "omega" in name else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=g) + shift)
        # One input that nothing uses.
        modules[0].get_parameter("inclusion.omega")[:, 0] = -9.0
    return fastlbbnn.select(model)


def forward(network: SparseNetwork, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs in float64 at float32 weights, and how far a float32 pass may be from them.

    A float32 sum of n products and a bias, in any order, is off by at most (n + 2)*u*(sum(|w||z|) +
    |b|), u = 2^-24, to first order: every product and every addition rounds once. The next layer
    multiplies the errors of its inputs by |W|, and ReLU does not increase them. 1.01 covers the
    second order: n*u is below 10^-3 for all sizes here.
    """
    unit = 2.0**-24
    z = x.astype(np.float64)[:, network.inputs]
    allowed = np.zeros_like(z)
    for layer in network.layers:
        weight, bias = layer.dense().astype(np.float64), layer.bias_mean.astype(np.float64)
        sums = (np.abs(z) + allowed) @ np.abs(weight).T + np.abs(bias)
        terms = np.diff(layer.row_offsets)
        allowed = allowed @ np.abs(weight).T + (terms + 2) * unit * sums
        z = z @ weight.T + bias
        z = np.maximum(z, 0.0) if layer.relu else z
    return z, 1.01 * allowed


#: Networks that exports must get right: name -> network.
NETWORKS = {
    "three-layers": make_network((20, 30, 17, 5), in_features=40, seed=1),
    "one-layer": make_network((7, 3), seed=2),
    "one-of-everything": make_network((1, 1, 1), densities=1.0, seed=3),
    "dense": make_network((9, 8, 4), densities=1.0, seed=4),
    "blocks": make_network((21, 33, 6), blocks=(8, 1), densities=0.5, seed=5),
    "wide-indices": make_network((300, 4, 3), densities=(0.5, 1.0), in_features=70000, seed=6),
    "long-rows": make_network((600, 3, 2), densities=(1.0, 1.0), seed=7),
    "deep": make_network((6, 11, 4, 12, 5, 3), densities=0.6, seed=8),
    "constant-hidden": make_network((5, 6, 4, 3), densities=(0.5, 0.0, 0.5), seed=9),
    "constant": make_network((0, 0, 3), densities=0.0, in_features=8, seed=10),
    "no-hidden-units": make_network((4, 0, 3), densities=0.0, seed=11),
}
