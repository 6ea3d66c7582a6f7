"""Laplace's approximation to the probability of signs: which structure do random logits make most probable?

    q(s) = E prod_k sigmoid(s_k omega_k),  omega ~ N(xi, Sigma),  s in {-1, 1}^K

is the evidence of a logistic model with a Gaussian prior whose observations are the signs s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..nn.inclusion.random import mean_sigmoid


class _Fit(NamedTuple):
    log_q: float
    a: Tensor  # [K]: the mode is xi + Sigma a
    mode: Tensor  # [K], of omega given the signs
    variance: Tensor  # [K], of the normal approximation there
    gradient: Tensor  # [K], of log sigmoid(s omega) at the mode
    curvature: Tensor  # [K], minus its second derivative


@torch.no_grad()
def most_probable_signs(
    xi: Tensor, sigma: Tensor, *, starts: int = 0, generator: torch.Generator | None = None
) -> tuple[Tensor, float]:
    """The most probable signs [K] in {-1, 1} that a local search finds, and their log q(s).

    From the signs of xi on, the most probable ones if Sigma is diagonal, signs are changed whose probability
    given all others is below one half: all of these at once, or the least probable half of them, and so on,
    until q(s) is larger. Where not even one change helps, the search ends.

    The probability of a sign given the others is E sigmoid(s_k omega_k) over omega_k given the others, which
    is taken as normal with the moments that are left of Laplace's approximation without the k-th factor.

    Args:
        xi, sigma: mean [K] and covariance [K, K] of the logits.
        starts: further searches from the signs of as many draws of omega; the best result counts.
    """
    xi, sigma = xi.double(), sigma.double()
    best = _climb(xi, sigma, xi)
    if starts:
        noise = torch.randn(starts, len(xi), dtype=torch.float64, generator=generator).to(xi.device)
        for omega in xi + noise @ torch.linalg.cholesky(sigma).T:
            best = max(best, _climb(xi, sigma, omega), key=lambda found: found[1])
    return best


def _climb(xi: Tensor, sigma: Tensor, start: Tensor) -> tuple[Tensor, float]:
    signs = torch.where(start > 0.0, 1.0, -1.0).to(xi)
    fit = _fit(xi, sigma, signs, torch.zeros_like(xi))
    while True:
        # Precisions subtract: the marginal's 1/variance less the k-th factor's curvature.
        left = 1.0 - fit.curvature * fit.variance
        mean = fit.mode - fit.variance * fit.gradient / left
        probability = mean_sigmoid(signs * mean, (fit.variance / left).sqrt())
        doubtful = torch.argsort(probability)[: int((probability < 0.5).sum())]
        while len(doubtful):
            changed = signs.clone()
            changed[doubtful] *= -1.0
            found = _fit(xi, sigma, changed, fit.a)
            if found.log_q > fit.log_q + 1e-9:  # more than rounding
                signs, fit = changed, found
                break
            doubtful = doubtful[: len(doubtful) // 2]
        else:
            return signs, fit.log_q


def _fit(xi: Tensor, sigma: Tensor, signs: Tensor, a: Tensor) -> _Fit:
    """Newton's method for the mode of log N(omega; xi, Sigma) + sum log sigmoid(s omega), which is concave.

    With omega = xi + Sigma a, W the curvatures and B = I + W^1/2 Sigma W^1/2 = L L', at the mode:

        log q(s) ~ -a' Sigma a / 2 + sum log sigmoid(s omega) - sum log L_kk
        variance = diag(Sigma - Sigma W^1/2 B^-1 W^1/2 Sigma)
    """

    def objective(a: Tensor) -> tuple[float, Tensor]:
        moved = sigma @ a
        omega = xi + moved
        return (logsigmoid(signs * omega).sum() - 0.5 * a @ moved).item(), omega

    value, omega = objective(a)
    identity = torch.eye(len(xi), dtype=xi.dtype, device=xi.device)
    while True:
        gradient = signs * torch.sigmoid(-signs * omega)
        curvature = torch.sigmoid(omega) * torch.sigmoid(-omega)
        root = curvature.sqrt()
        factor = torch.linalg.cholesky(identity + root[:, None] * sigma * root)
        b = curvature * (omega - xi) + gradient
        newton = b - root * torch.cholesky_solve((root * (sigma @ b))[:, None], factor)[:, 0]
        # Far out the sigmoid is flat and a whole step goes too far: halve it until it is an improvement.
        size, improved = 1.0, False
        while size > 1e-6 and not improved:
            trial = torch.lerp(a, newton, size)
            found, there = objective(trial)
            improved = found > value + 1e-10 * abs(value)
            size *= 0.5
        if not improved:
            break
        a, value, omega = trial, found, there
    half = torch.linalg.solve_triangular(factor, root[:, None] * sigma, upper=False)
    variance = sigma.diagonal() - half.square().sum(0)
    log_q = value - factor.diagonal().log().sum().item()
    return _Fit(log_q, a, omega, variance, gradient, curvature)
