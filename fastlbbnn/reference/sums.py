"""The five sums from which every KL divergence of a layer is made.

With ``alpha = sigmoid(omega)`` on a grid of blocks, ``c`` weights in a block, ``tau = softplus(rho)``:

    H   = sum_block  alpha log(alpha) + (1-alpha) log(1-alpha)
    A   = sum_block  alpha
    A_w = sum_block  alpha c
    T   = sum_weight alpha log(tau^2)
    S   = sum_weight alpha (kappa^2 + tau^2)

Biases are weights that are always included (alpha = 1): they add to A_w, T and S only.
"""

from __future__ import annotations

import torch
from torch import Tensor


def softplus(rho: Tensor) -> Tensor:
    """log(1 + exp(rho)); ``torch.nn.functional.softplus`` cuts over to rho at 20, this does not."""
    return torch.logaddexp(rho, torch.zeros_like(rho))


def log_softplus(rho: Tensor) -> Tensor:
    """log(softplus(rho)), finite where softplus itself underflows: there it is rho."""
    tiny = rho < -30.0
    return torch.where(tiny, rho, softplus(rho.masked_fill(tiny, 0.0)).log())


def negative_entropy(omega: Tensor) -> Tensor:
    """alpha log(alpha) + (1-alpha) log(1-alpha), written so that nothing cancels.

    With e = exp(-|omega|) it is -(log1p(e) + |omega| e / (1+e)): two terms of one sign.
    """
    # sqrt(omega^2) would be the same; torch.abs has slope 0 at 0, which is right here.
    magnitude = omega.abs()
    e = torch.exp(-magnitude)
    return -(torch.log1p(e) + magnitude * e / (1.0 + e))


def grid_shape(rows: int, cols: int, block: tuple[int, int]) -> tuple[int, int]:
    """Blocks along the rows and columns; the last ones may be cut off."""
    return -(-rows // block[0]), -(-cols // block[1])


def expand_blocks(grid: Tensor, rows: int, cols: int, block: tuple[int, int]) -> Tensor:
    """[grid_rows, grid_cols] -> [rows, cols]: every weight gets the value of its block."""
    if block == (1, 1):
        return grid
    return grid.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :cols]


def kl_sums(
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    block: tuple[int, int] = (1, 1),
) -> Tensor:
    """The five sums H, A, A_w, T, S as a tensor [5]. ``omega=None``: no indicators, alpha = 1."""
    rows, cols = kappa.shape
    square = kappa.square() + softplus(rho).square()
    log_variance = 2.0 * log_softplus(rho)
    if omega is None:
        H = A = kappa.new_zeros(())
        A_w = kappa.new_full((), float(rows * cols))
        T, S = log_variance.sum(), square.sum()
    else:
        H = negative_entropy(omega).sum()
        A = torch.sigmoid(omega).sum()
        alpha = expand_blocks(torch.sigmoid(omega), rows, cols, block)
        A_w, T, S = alpha.sum(), (alpha * log_variance).sum(), (alpha * square).sum()
    if bias_kappa is not None and bias_rho is not None:
        A_w = A_w + float(rows)
        T = T + 2.0 * log_softplus(bias_rho).sum()
        S = S + (bias_kappa.square() + softplus(bias_rho).square()).sum()
    return torch.stack((H, A, A_w, T, S))
