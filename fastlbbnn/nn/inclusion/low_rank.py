"""Logits with a covariance of low rank plus a diagonal."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._util.checks import check_choice
from .random import RandomLogits

Over = Literal["inputs", "inputs-by-row"]


class ScaledNoise(torch.autograd.Function):
    """``xi + exp(log_scale) z``, [R, D], in as few passes over memory as it takes. z has no gradient."""

    @staticmethod
    def forward(ctx, xi: Tensor, log_scale: Tensor, z: Tensor) -> Tensor:
        scale = log_scale.exp()
        ctx.save_for_backward(scale, z)
        return torch.addcmul(xi, scale, z)

    @staticmethod
    def backward(ctx, g: Tensor):
        scale, z = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return g, None, None
        product = g * z
        shared = scale.dim() == 1
        return g, product.sum(0).mul_(scale) if shared else product.mul_(scale), None


class RankOneTraceAndLogDet(torch.autograd.Function):
    """Traces and log-determinants of ``D_r + F_r F_r'``, summed over rows r, for one factor F [R, D] per row.

    With s = exp(log_scale) and h_r = sum over the row of F^2/s^2,

        trace = sum s^2 + F^2,     log det = sum 2 log s + sum over rows of log(1 + h_r),

    whose derivatives are written out below: left to autograd, they take three times as long.
    """

    @staticmethod
    def forward(ctx, log_scale: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        variance = (2.0 * log_scale).exp_()
        squares = factor.square()
        trace = variance.sum() + squares.sum()
        ratio = squares.div_(variance)
        inner = ratio.sum(-1, keepdim=True)
        ctx.save_for_backward(factor, variance, ratio, inner)
        return trace, 2.0 * log_scale.sum() + inner.log1p().sum()

    @staticmethod
    def backward(ctx, g_trace: Tensor, g_log_det: Tensor):
        factor, variance, ratio, inner = ctx.saved_tensors
        # d log det: 2 - 2 (F^2/s^2)/(1 + h) in log s, 2 (F/s^2)/(1 + h) in F.
        row = 2.0 * g_log_det / (1.0 + inner)
        d_log_scale = torch.addcmul(2.0 * g_log_det, variance, 2.0 * g_trace).addcmul_(ratio, row, value=-1.0)
        d_factor = torch.addcdiv(2.0 * g_trace, row, variance).mul_(factor)
        return d_log_scale, d_factor


class LowRankMVN(RandomLogits):
    """Multivariate normal logits with ``Sigma = D + F F'`` (LBBNN-GP-LFMVN).

    ``omega = xi + exp(log_scale) z + f F'`` with z [rows, cols] and f [rows, rank] standard normal;
    ``D = diag(exp(log_scale)**2)`` is positive whatever the parameters are. Rows are independent.

    Args:
        rows, cols: the grid of indicators.
        rank: columns of F; 0 leaves independent logits with variances of their own.
        over: "inputs-by-row": each row has its own D and F [rows, cols, rank], as in the authors' scripts;
            "inputs": one D and F [cols, rank] for all rows.
        scale: standard deviation of the logits at the start, half of the variance from D and half from
            F's random start (from F = 0 no gradient leads anywhere).
        prior_logit_sd, prior_logit_mean: see ``RandomLogits``.
    """

    def __init__(
        self,
        rows: int,
        cols: int,
        *,
        rank: int = 1,
        over: Over = "inputs-by-row",
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
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise TypeError(f"rank={rank!r} is a {type(rank).__name__}; expected an int, at least 0")
        if rank < 0:
            raise ValueError(f"rank={rank}; expected at least 0")
        check_choice("over", over, ("inputs", "inputs-by-row"))
        self.rank = rank
        self.over = over
        shape = (rows, cols) if over == "inputs-by-row" else (cols,)
        kwargs = {"device": device, "dtype": dtype}
        #: Logarithm of the standard deviations of D.
        self.log_scale = nn.Parameter(torch.empty(shape, **kwargs))
        #: F; None at rank 0.
        self.factor = nn.Parameter(torch.empty(*shape, rank, **kwargs)) if rank else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        share = 0.5 * self.scale**2 if self.rank else self.scale**2
        with torch.no_grad():
            self.log_scale.fill_(0.5 * math.log(share))
            if self.factor is not None:
                self.factor.normal_(0.0, math.sqrt(share / self.rank))

    def _draw(self, seed: Tensor) -> Tensor:
        noise = self._noise(seed, self.rank)
        z, f = noise[:, : self.cols], noise[:, self.cols :]
        omega = ScaledNoise.apply(self.xi, self.log_scale, z)
        if self.factor is None:
            return omega
        if self.over == "inputs":
            return torch.addmm(omega, f, self.factor.T)
        if self.rank == 1:
            return torch.addcmul(omega, self.factor.squeeze(-1), f)
        return omega + torch.matmul(self.factor, f.unsqueeze(-1)).squeeze(-1)

    def covariance(self) -> Tensor:
        diagonal = torch.diag_embed((2.0 * self.log_scale).exp())
        return diagonal if self.factor is None else diagonal + self.factor @ self.factor.mT

    def variances(self) -> Tensor:
        diagonal = (2.0 * self.log_scale).exp()
        return diagonal if self.factor is None else diagonal + self.factor.square().sum(-1)

    def row_covariance(self, row: int) -> Tensor:
        if self.over == "inputs":
            return self.covariance()
        diagonal = torch.diag((2.0 * self.log_scale[row]).exp())
        return diagonal if self.factor is None else diagonal + self.factor[row] @ self.factor[row].T

    def _trace_and_log_det(self) -> tuple[Tensor, Tensor]:
        copies = self.rows if self.over == "inputs" else 1
        if self.rank == 1 and self.factor is not None:
            log_scale = self.log_scale if copies == 1 else self.log_scale.unsqueeze(0)
            trace, log_det = RankOneTraceAndLogDet.apply(log_scale, self.factor.view_as(log_scale))
            return copies * trace, copies * log_det
        log_det = 2.0 * self.log_scale.sum()
        if self.factor is not None:
            # det(D + F F') = det(D) det(I + F' D^-1 F)
            whitened = self.factor * torch.exp(-self.log_scale).unsqueeze(-1)
            inner = whitened.mT @ whitened
            identity = torch.eye(self.rank, dtype=inner.dtype, device=inner.device)
            log_det = log_det + torch.logdet(identity + inner).sum()
        return copies * self.variances().sum(), copies * log_det

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, over={self.over!r}"
