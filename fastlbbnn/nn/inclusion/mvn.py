"""Logits with a full covariance."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._util.checks import check_choice
from .random import RandomLogits, check_memory
from .triangular import StrictlyLowerSquares, TriangularNoise

Over = Literal["inputs", "inputs-by-row", "layer"]

#: Entries of a layer's Cholesky factors above which ``MVN`` refuses: 1 GiB to train in float32.
MAX_FACTOR_ENTRIES = 2**26


class MVN(RandomLogits):
    """Multivariate normal logits, ``omega = xi + z L'`` with z standard normal (LBBNN-GP-MVN).

    L is lower triangular with the positive diagonal ``exp(log_scale)``, so that ``Sigma = L L'`` is
    positive definite whatever the parameters are.

    Args:
        rows, cols: the grid of indicators.
        over: what Sigma is over. "inputs": a row's inputs, one Sigma ``[cols, cols]`` for all rows, which
            are independent (the paper's experiments); "inputs-by-row": the same with a Sigma for each
            row; "layer": all indicators of the layer, ``[rows*cols, rows*cols]``, row by row. A factor of
            more than ``MAX_FACTOR_ENTRIES`` entries is refused.
        scale: standard deviation of the logits at the start; ``Sigma = scale**2 I``.
        prior_logit_sd, prior_logit_mean: see ``RandomLogits``.
    """

    def __init__(
        self,
        rows: int,
        cols: int,
        *,
        over: Over = "inputs",
        scale: float = 1.0,
        prior_logit_sd: float | None = None,
        prior_logit_mean: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            rows, cols, scale=scale, prior_logit_sd=prior_logit_sd, prior_logit_mean=prior_logit_mean,
            device=device, dtype=dtype,
        )
        size = rows * cols
        shapes: dict[str, tuple[int, ...]] = {
            "inputs": (cols, cols), "inputs-by-row": (rows, cols, cols), "layer": (size, size)
        }
        check_choice("over", over, shapes)
        shape = shapes[over]
        check_memory(
            shape, f"the Cholesky factor of {rows} x {cols} indicators with over={over!r}",
            "Use over='inputs', LowRankMVN, or larger blocks.", MAX_FACTOR_ENTRIES,
        )
        self.over = over
        kwargs = {"device": device, "dtype": dtype}
        #: L below its diagonal; what stands on and above the diagonal is not used.
        self.lower = nn.Parameter(torch.empty(shape, **kwargs))
        #: Logarithm of L's diagonal.
        self.log_scale = nn.Parameter(torch.empty(shape[:-1], **kwargs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.lower.zero_()
            self.log_scale.fill_(math.log(self.scale))

    def cholesky(self) -> Tensor:
        """L, ``[D, D]`` or ``[rows, D, D]``."""
        return self.lower.tril(-1) + torch.diag_embed(self.log_scale.exp())

    def _draw(self, seed: Tensor) -> Tensor:
        z = self._noise(seed)
        if self.over == "inputs-by-row":
            return self.xi + torch.matmul(self.cholesky(), z.unsqueeze(-1)).squeeze(-1)
        shape = (self.rows, self.cols) if self.over == "inputs" else (1, -1)
        omega = TriangularNoise.apply(
            self.xi.view(shape), self.lower, self.log_scale.exp(), z.reshape(shape)
        )
        return omega.view(self.rows, self.cols)

    def covariance(self) -> Tensor:
        factor = self.cholesky()
        return factor @ factor.mT

    def variances(self) -> Tensor:
        sums = self.cholesky().square().sum(-1)
        return sums.view(self.rows, self.cols) if self.over == "layer" else sums

    def row_covariance(self, row: int) -> Tensor:
        if self.over == "layer":
            own = slice(row * self.cols, (row + 1) * self.cols)
            return self.covariance()[own, own]
        return super().row_covariance(row)

    def _trace_and_log_det(self) -> tuple[Tensor, Tensor]:
        copies = self.rows if self.over == "inputs" else 1
        # tr(L L') = |L|^2
        if self.lower.dim() == 2:
            below = StrictlyLowerSquares.apply(self.lower)
        else:
            below = self.lower.tril(-1).square().sum()
        trace = below + (2.0 * self.log_scale).exp().sum()
        return copies * trace, copies * 2.0 * self.log_scale.sum()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, over={self.over!r}"
