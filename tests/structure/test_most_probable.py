"""The most probable signs of correlated logits, against the probabilities of all of them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fastlbbnn.nn.inclusion.random import mean_sigmoid
from fastlbbnn.structure.most_probable import _fit, most_probable_signs


def problem(seed: int, size: int = 5, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Means near zero, and a covariance with strong dependence."""
    g = torch.Generator().manual_seed(seed)
    xi = 0.3 + 0.5 * torch.randn(size, dtype=torch.float64, generator=g)
    factor = torch.tril(torch.randn(size, size, dtype=torch.float64, generator=g), -1)
    factor = scale * (factor + torch.eye(size, dtype=torch.float64))
    return xi, factor @ factor.T


def all_probabilities(xi: torch.Tensor, sigma: torch.Tensor) -> dict[tuple[float, ...], float]:
    """q(s) of every s, from 100,000 draws: an error below 0.5 / sqrt(100000) = 0.0016, mostly far below."""
    g = torch.Generator().manual_seed(9)
    noise = torch.randn(100_000, len(xi), dtype=torch.float64, generator=g)
    omega = xi + noise @ torch.linalg.cholesky(sigma).T
    return {
        s: torch.sigmoid(omega * torch.tensor(s)).prod(1).mean().item()
        for s in itertools.product((-1.0, 1.0), repeat=len(xi))
    }


def test_with_a_diagonal_covariance_they_are_the_signs_of_the_means():
    xi, _ = problem(0, size=40)
    variances = torch.linspace(0.01, 4.0, 40, dtype=torch.float64)
    signs, log_q = most_probable_signs(xi, torch.diag(variances))
    assert torch.equal(signs > 0, xi > 0)
    exact = mean_sigmoid(xi.abs(), variances.sqrt()).log().sum().item()
    # Laplace's error is below 0.02 nats a logit at these variances.
    assert log_q == pytest.approx(exact, abs=0.02 * 40)


def test_without_variance_the_probability_is_exact():
    xi, sigma = problem(1)
    _, log_q = most_probable_signs(xi, 1e-8 * sigma)
    assert log_q == pytest.approx(torch.sigmoid(xi.abs()).log().sum().item(), rel=1e-6)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_they_are_the_most_probable_of_all(scale):
    better = 0
    for seed in range(6):
        xi, sigma = problem(seed, scale=scale)
        signs, log_q = most_probable_signs(xi, sigma, starts=8, generator=torch.Generator().manual_seed(0))
        exact = all_probabilities(xi, sigma)
        found, largest = exact[tuple(signs.tolist())], max(exact.values())
        # Laplace's approximation is within 0.1 nats here (seen: 0.05), so signs that are more probable by
        # less than that may be overlooked.
        assert log_q == pytest.approx(math.log(found), abs=0.1)
        assert math.log(found) > math.log(largest) - 0.1
        median = exact[tuple(torch.sign(xi).tolist())]
        better += math.log(median) < math.log(found) - 0.1
    assert better > 0  # or the signs of the means would do


def test_a_search_never_ends_below_where_it_starts():
    for seed in range(5):
        xi, sigma = problem(seed, size=30)
        one = most_probable_signs(xi, sigma)[1]
        assert most_probable_signs(xi, sigma, starts=3)[1] >= one
        start = _fit(xi, sigma, torch.sign(xi), torch.zeros_like(xi)).log_q
        assert one >= start


def test_wide_covariances_converge():
    xi, sigma = problem(3, size=20, scale=30.0)
    signs, log_q = most_probable_signs(xi, sigma)
    assert math.isfinite(log_q) and log_q < 0.0
    assert set(signs.tolist()) <= {-1.0, 1.0}
