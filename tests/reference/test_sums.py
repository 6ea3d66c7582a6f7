"""The five sums and the KL made of them: formulas, enumeration, Monte Carlo."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.helpers import make_parameters
from torch.distributions import Bernoulli, Normal

from fastlbbnn import reference
from fastlbbnn.nn.priors import FixedPrior

PSI, SIGMA2 = 0.3, 0.7


def layer_kl(parameters, block) -> float:
    sums = reference.kl_sums(*parameters, block=block)
    return FixedPrior(PSI, SIGMA2).kl(sums, parameters[2].numel()).item()


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (5, 2)])
def test_sums_are_the_written_formulas(block):
    kappa, rho, omega, bias_kappa, bias_rho = make_parameters(5, 7, block=block, dtype=torch.float64)
    alpha, tau = torch.sigmoid(omega), torch.log1p(torch.exp(rho))
    H = (alpha * alpha.log() + (1 - alpha) * (1 - alpha).log()).sum()
    A_w = T = S = torch.zeros(())
    for n, k in itertools.product(range(5), range(7)):
        a = alpha[n // block[0], k // block[1]]
        A_w = A_w + a
        T = T + a * (tau[n, k] ** 2).log()
        S = S + a * (kappa[n, k] ** 2 + tau[n, k] ** 2)
    bias_tau = torch.log1p(torch.exp(bias_rho))
    expected = torch.stack(
        (
            H,
            alpha.sum(),
            A_w + 5,
            T + (bias_tau**2).log().sum(),
            S + (bias_kappa**2 + bias_tau**2).sum(),
        )
    )
    sums = reference.kl_sums(kappa, rho, omega, bias_kappa, bias_rho, block=block)
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-12)


def gaussian_kl(mean, tau):
    return 0.5 * (math.log(SIGMA2) - 2 * tau.log() + (mean**2 + tau**2) / SIGMA2 - 1)


@pytest.mark.parametrize("block", [(1, 1), (2, 2)])
def test_kl_equals_an_enumeration_of_all_structures(block):
    parameters = make_parameters(2, 3, block=block, dtype=torch.float64)
    kappa, rho, omega, bias_kappa, bias_rho = (p.detach() for p in parameters)
    alpha, tau = torch.sigmoid(omega).flatten(), reference.softplus(rho)
    total = gaussian_kl(bias_kappa, reference.softplus(bias_rho)).sum()
    # KL = sum over gamma of q(gamma) (log q(gamma)/p(gamma) + KL of the included weights).
    for gamma in itertools.product((0.0, 1.0), repeat=alpha.numel()):
        g = torch.tensor(gamma, dtype=torch.float64)
        log_q = (g * alpha.log() + (1 - g) * (1 - alpha).log()).sum()
        log_p = (g * math.log(PSI) + (1 - g) * math.log(1 - PSI)).sum()
        included = reference.expand_blocks(g.view(omega.shape), 2, 3, block)
        total = total + log_q.exp() * (log_q - log_p + (included * gaussian_kl(kappa, tau)).sum())
    assert layer_kl(parameters, block) == pytest.approx(total.item(), rel=1e-12)


@pytest.mark.parametrize("block", [(1, 1), (3, 2)])
def test_kl_equals_a_monte_carlo_estimate_from_exact_draws(block):
    rows, cols, draws = 6, 8, 20_000
    parameters = make_parameters(rows, cols, block=block, dtype=torch.float64)
    kappa, rho, omega, bias_kappa, bias_rho = (p.detach() for p in parameters)
    torch.manual_seed(0)
    gamma = Bernoulli(logits=omega).sample((draws,))
    weight, bias = Normal(kappa, reference.softplus(rho)), Normal(bias_kappa, reference.softplus(bias_rho))
    slab = Normal(0.0, math.sqrt(SIGMA2))
    beta, b = weight.sample((draws,)), bias.sample((draws,))
    included = torch.stack([reference.expand_blocks(g, rows, cols, block) for g in gamma])
    log_ratio = (
        (Bernoulli(logits=omega).log_prob(gamma) - Bernoulli(PSI).log_prob(gamma)).sum((1, 2))
        + (included * (weight.log_prob(beta) - slab.log_prob(beta))).sum((1, 2))
        + (bias.log_prob(b) - slab.log_prob(b)).sum(1)
    )
    standard_error = log_ratio.std().item() / math.sqrt(draws)
    assert abs(layer_kl(parameters, block) - log_ratio.mean().item()) < 4.0 * standard_error


def test_the_sampled_sums_have_the_closed_sums_as_their_mean():
    draws = 4000
    parameters = [p.detach() for p in make_parameters(4, 6, dtype=torch.float64)]
    values = torch.stack(
        [
            reference.sampled_kl_sums(*parameters, seed=torch.tensor(1), sample=s, hard=True)
            for s in range(draws)
        ]
    )
    standard_error = values.std(0) / math.sqrt(draws)
    difference = (values.mean(0) - reference.kl_sums(*parameters)).abs()
    assert (difference < 4.0 * standard_error + 1e-12).all()


def test_certain_indicators_leave_no_entropy():
    omega = torch.tensor([[60.0, -60.0]], dtype=torch.float64)
    sums = reference.kl_sums(torch.ones(1, 2).double(), torch.zeros(1, 2).double(), omega)
    assert abs(sums[0].item()) < 1e-20
    assert sums[1].item() == pytest.approx(1.0)
