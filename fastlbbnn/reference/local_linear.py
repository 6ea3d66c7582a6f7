"""Local reparametrisation: draw the activations, whose mean and variance are known exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from .noise import Stream, normals
from .sums import kl_sums, softplus

#: A variance of exactly zero (an input of zeros and no bias) has no finite slope. Raised to this, its
#: standard deviation of 1e-15 disappears in any activation. Mirrored in ``csrc/cpu/kernels.h``.
MIN_VARIANCE = 1e-30


def local_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor,
    samples: int = 1,
) -> tuple[Tensor, Tensor]:
    """``x: [M, K]`` or ``[S, M, K]`` -> ``y: [S, M, N]`` and the five sums ``[5]``.

    A gated weight has mean alpha kappa and variance alpha (tau^2 + (1-alpha) kappa^2). With one
    indicator per weight they are independent, so an activation has

        mean = x (alpha kappa)' + b,   var = x^2 (alpha (tau^2 + (1-alpha) kappa^2))' + tau_b^2.

    An ``x`` of another dtype than the parameters' is converted to theirs, and ``y`` back to its own.
    """
    given, x = x.dtype, x.to(kappa.dtype)
    tau2 = softplus(rho).square()
    if omega is None:
        mean_w, var_w = kappa, tau2
    else:
        alpha = torch.sigmoid(omega)
        mean_w, var_w = alpha * kappa, alpha * (tau2 + (1.0 - alpha) * kappa.square())
    mean, var = x @ mean_w.T, x.square() @ var_w.T
    if bias_kappa is not None and bias_rho is not None:
        mean, var = mean + bias_kappa, var + softplus(bias_rho).square()
    std = var.clamp_min(MIN_VARIANCE).sqrt()
    eps = torch.stack(
        [normals(seed, Stream.ACTIVATION, s, *mean.shape[-2:]) for s in range(samples)]
    ).to(x.dtype)
    return (mean + std * eps).to(given), kl_sums(kappa, rho, omega, bias_kappa, bias_rho)
