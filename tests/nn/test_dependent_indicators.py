"""What the families learn: a known structure is found, and covariances go where theory says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fastlbbnn
from fastlbbnn.data.simulated import correlated_logistic
from fastlbbnn.nn import LBBNNLinear


def fit(layer: LBBNNLinear, x: Tensor, y: Tensor, likelihood: str, steps: int, **sizes: float) -> None:
    """Adam on the whole data; step sizes go down to zero in the second half."""
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(layer, **sizes))
    starts = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        for group, start in zip(optimizer.param_groups, starts):
            group["lr"] = start * min(1.0, 2.0 * (1.0 - step / steps))
        bound = fastlbbnn.elbo(layer, x, y, n_data=len(x), likelihood=likelihood)
        optimizer.backward_step(bound.loss)


@pytest.mark.parametrize("inclusion", ["mean-field", "mvn", "low-rank"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_correlated_logistic_structure_is_recovered(inclusion, seed):
    """At n = 2000, 8 true covariates of 40, three of which have a near-duplicate (correlation 0.9)."""
    n = 2000
    problem = correlated_logistic(n, p=40, true=8, groups=3, duplicate_correlation=0.9, seed=seed)
    torch.manual_seed(seed)
    layer = LBBNNLinear(
        40, 1, estimator="local", prior=fastlbbnn.FixedPrior.paper(n), inclusion=inclusion
    )
    fit(layer, problem.x, problem.y, "bernoulli", 600, weights=0.05, inclusion=0.1, covariance=0.05)
    alpha = layer.inclusion_probabilities()[0]
    assert alpha[problem.true].min() > 0.9
    assert alpha[~problem.true].max() < 0.1
    assert torch.equal(layer.kappa[0][problem.true].sign(), problem.coefficients[problem.true].sign())
    if inclusion == "mvn":
        # Learned for real: they start at 1 and 0. Towards zero, as the mean of mean-field bounds is
        # largest at a point; the rest is from before the indicators became certain.
        assert layer.inclusion.variances().median() < 0.6
        assert (layer.inclusion.correlation() - torch.eye(40)).abs().max() > 0.1


def gaussian_bound(layer: LBBNNLinear, x: Tensor, y: Tensor):
    """The mean-field bound as a function of a row's logits, exact for a Gaussian likelihood, float64."""
    kappa, tau = layer.kappa[0].double(), torch.nn.functional.softplus(layer.rho[0].double())
    x, y, prior = x.double(), y.double(), layer.prior.expectations()

    def bound(omega: Tensor) -> Tensor:
        alpha = torch.sigmoid(omega)
        residual = y - x @ (alpha * kappa)
        variance = x.square() @ (alpha * (tau.square() + (1.0 - alpha) * kappa.square()))
        inclusion = alpha * (alpha.log() - prior.log_psi) + (1.0 - alpha) * (
            (1.0 - alpha).log() - prior.log_one_minus_psi
        )
        second_moment = kappa.square() + tau.square()
        slab = 0.5 * alpha * (
            prior.log_sigma2 - tau.square().log() + prior.inverse_sigma2 * second_moment - 1.0
        )
        return -0.5 * (residual.square() + variance).sum() - (inclusion + slab).sum()

    return bound


@pytest.mark.parametrize(
    ("second", "sign"), [(1.0, -1.0), (-1.0, 1.0)], ids=["replace-each-other", "need-each-other"]
)
def test_the_covariance_settles_at_the_curvature_of_the_bound(second, sign):
    """``Sigma^-1 = I/s^2 + E[-Hessian]``, for fixed weights and mean logits.

    Two covariates of correlation 0.9 whose coefficients are 1 and 1 can replace each other; with 1 and -1
    they matter only together. Two hundred equal rows share Sigma, so that a step averages as many draws.
    """
    torch.manual_seed(0)
    s, n, rows = 1.0, 60, 200
    x = torch.randn(n, 4)
    x[:, 1] = 0.9 * x[:, 0] + (1.0 - 0.9**2) ** 0.5 * x[:, 1]
    y = x @ torch.tensor([0.5, 0.5 * second, 0.5, 0.0]) + 0.1 * torch.randn(n)
    layer = LBBNNLinear(
        4, rows, bias=False, estimator="local", prior=fastlbbnn.FixedPrior(psi=0.5), inclusion="mvn",
        inclusion_options={"prior_logit_sd": s},
    )
    with torch.no_grad():
        layer.kappa.copy_(torch.tensor([1.0, second, 1.0, 0.3]).expand(rows, 4))
        layer.rho.fill_(-2.0)
        layer.inclusion.xi.zero_()
    for p in (layer.kappa, layer.rho, layer.inclusion.xi):
        p.requires_grad_(False)
    fit(layer, x, y.unsqueeze(1).expand(n, rows), "gaussian", 1000, covariance=0.03)
    sigma = layer.inclusion.covariance().detach().double()

    bound = gaussian_bound(layer, x, y)
    z = torch.randn(10_000, 4, dtype=torch.float64)
    omega = z @ torch.linalg.cholesky(sigma).T
    hessian = torch.func.vmap(torch.func.hessian(bound))(omega).mean(0)
    expected = torch.eye(4, dtype=torch.float64) / s**2 - hessian
    # A Hessian's entries are spread by about 1 over omega: 10,000 draws leave 0.01. The gradient's draws
    # are spread by about 2 in the same units; L averages the last fifty steps or so of 200 each, which
    # leaves 0.02. Four times both, for the largest of ten entries.
    assert (torch.linalg.inv(sigma) - expected).abs().max() < 0.12
    assert sign * layer.inclusion.correlation()[0, 1] > 0.7


@pytest.mark.parametrize("seed", [0, 1])
def test_near_duplicates_get_negative_correlations(seed):
    """Two covariates of correlation 0.95 that share an effect, all parameters trained."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 6, generator=g)
    x[:, 1] = 0.95 * x[:, 0] + (1.0 - 0.95**2) ** 0.5 * x[:, 1]
    logit = x @ torch.tensor([0.7, 0.7, 0.0, 0.0, -1.0, 0.0])
    y = torch.bernoulli(torch.sigmoid(logit), generator=g)
    torch.manual_seed(seed)
    layer = LBBNNLinear(
        6, 1, estimator="local", prior=fastlbbnn.FixedPrior(psi=0.5), inclusion="mvn",
        inclusion_options={"prior_logit_sd": 1.0, "prior_logit_mean": 0.0},
    )
    fit(layer, x, y, "bernoulli", 1000, weights=0.05, inclusion=0.05, covariance=0.02)
    correlation = layer.inclusion.correlation()
    assert correlation[0, 1] < -0.15
    assert layer.inclusion.indicator_correlation(0, generator=g)[0, 1] < 0.0
