"""Gaussian weights under a scale-mixture prior: the KL needs the draw that computes the outputs.

The prior of a weight or bias is ``pi N(0, v1) + (1-pi) N(0, v2)`` with ``v1 > v2``: a wide part for what is
used, a narrow one for what is not (Blundell et al., 2015). Taking the wide part out of the logarithm,

    log p(w) = log pi - log(2 π v1)/2 - w^2/(2 v1) + softplus(t),
    t = c - d w^2/2,   c = log((1-pi)/pi) + log(v1/v2)/2,   d = 1/v2 - 1/v1,

so it needs one exponential, and its slope is ``-w (1/v1 + d sigmoid(t))``. The entropy of the posterior is
known; the cross-entropy is not, so it is estimated at the draws:

    KL ~ -sum log(2 π e tau^2)/2 - mean over draws of sum log p(w).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .gated_linear import sample_bias, sample_weights
from .sums import kl_sums, softplus


class ScaleMixture(NamedTuple):
    """The prior's numbers: probability and variance of the wide part, variance of the narrow one."""

    pi: float
    wide: float
    narrow: float

    @property
    def c(self) -> float:
        """Log odds that a weight of zero belongs to the narrow part."""
        return math.log1p(-self.pi) - math.log(self.pi) + 0.5 * math.log(self.wide / self.narrow)

    @property
    def d(self) -> float:
        """By how much the narrow part's precision exceeds the wide one's."""
        return 1.0 / self.narrow - 1.0 / self.wide

    @property
    def log_peak(self) -> float:
        """The wide part's log density at zero, with its probability."""
        return math.log(self.pi) - 0.5 * math.log(2.0 * math.pi * self.wide)

    def log_density(self, w: Tensor) -> Tensor:
        """log p(w), elementwise."""
        square = w.square()
        return self.log_peak - square / (2.0 * self.wide) + softplus(self.c - 0.5 * self.d * square)


def negative_posterior_entropy(sums: Tensor) -> Tensor:
    """sum E[log q] = -(A_w log(2 pi e) + T)/2 from the five sums of a layer without indicators."""
    return -0.5 * (sums[2] * math.log(2.0 * math.pi * math.e) + sums[3])


def mixture_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    bias_kappa: Tensor | None,
    bias_rho: Tensor | None,
    prior: ScaleMixture,
    *,
    seed: Tensor,
    samples: int = 1,
) -> tuple[Tensor, Tensor]:
    """``x: [M, K]`` (shared) or ``[S, M, K]`` -> ``y: [S, M, N]`` and the KL's estimate, a scalar.

    An ``x`` of another dtype than the parameters' is converted to theirs, and ``y`` back to its own.
    """
    given, x = x.dtype, x.to(kappa.dtype)
    outputs, log_p = [], torch.zeros((), dtype=kappa.dtype, device=kappa.device)
    for s in range(samples):
        w = sample_weights(kappa, rho, None, seed=seed, sample=s)
        y = (x if x.dim() == 2 else x[s]) @ w.T
        log_p = log_p + prior.log_density(w).sum()
        if bias_kappa is not None and bias_rho is not None:
            b = sample_bias(bias_kappa, bias_rho, seed=seed, sample=s)
            y = y + b
            log_p = log_p + prior.log_density(b).sum()
        outputs.append(y)
    sums = kl_sums(kappa, rho, None, bias_kappa, bias_rho)
    return torch.stack(outputs).to(given), negative_posterior_entropy(sums) - log_p / samples
