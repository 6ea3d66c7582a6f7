"""Families of random logits, with parameters away from their start."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fastlbbnn.nn import MVN, LowRankMVN
from fastlbbnn.nn.inclusion import RandomLogits

ROWS, COLS = 4, 5

RANDOM = {
    "mvn": partial(MVN),
    "mvn-by-row": partial(MVN, over="inputs-by-row"),
    "mvn-layer": partial(MVN, over="layer"),
    "rank-0": partial(LowRankMVN, rank=0),
    "rank-1": partial(LowRankMVN, rank=1),
    "rank-2": partial(LowRankMVN, rank=2),
    "rank-0-shared": partial(LowRankMVN, rank=0, over="inputs"),
    "rank-1-shared": partial(LowRankMVN, rank=1, over="inputs"),
    "rank-3-shared": partial(LowRankMVN, rank=3, over="inputs"),
}


def perturb(module: nn.Module, seed: int = 0, size: float = 0.5) -> None:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype), alpha=size)


def make(name: str, rows: int = ROWS, cols: int = COLS, dtype=torch.float64, **kwargs) -> RandomLogits:
    """A family with parameters away from their start."""
    torch.manual_seed(1)
    family = RANDOM[name](rows, cols, dtype=dtype, **kwargs)
    perturb(family)
    return family


def joint_covariance(family: RandomLogits) -> Tensor:
    """The covariance of all logits of the layer, row by row, [rows*cols, rows*cols]."""
    sigma = family.covariance().detach()
    size = family.rows * family.cols
    if sigma.shape == (size, size):
        return sigma
    return torch.block_diag(*(family.row_covariance(r).detach() for r in range(family.rows)))
