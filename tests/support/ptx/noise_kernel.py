"""A kernel that writes down the noise that the project's kernels use and forget."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from fastlbbnn.kernels.noise import gated_tile
from torch import Tensor

#: Where the tile lies in its layer, and its size.
FIRST_ROW, FIRST_COL, ROWS, COLS, SAMPLE = 37, 1004, 32, 64, 3


@triton.jit
def _noise_kernel(
    eps_ptr, logistic_ptr, seed_ptr, sample, first_row, first_col,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)[:, None]
    group = tl.arange(0, COLS // 4)[None, :]
    eps, noise = gated_tile(tl.load(seed_ptr), sample, first_row + row, first_col // 4 + group)
    offset = row * COLS + tl.arange(0, COLS)[None, :]
    tl.store(eps_ptr + offset, eps)
    tl.store(logistic_ptr + offset, noise)


def draw_noise(seed: Tensor) -> dict[str, Tensor]:
    eps, logistic = torch.full((2, ROWS, COLS), torch.nan)
    eps, logistic = eps.clone(), logistic.clone()
    _noise_kernel[(1,)](
        eps, logistic, seed, SAMPLE, FIRST_ROW, FIRST_COL, ROWS=ROWS, COLS=COLS,
        enable_fp_fusion=False,
    )  # fmt: skip
    return {"eps": eps, "logistic": logistic}
