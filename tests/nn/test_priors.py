"""Fixed, empirical-Bayes and conjugate priors."""

from __future__ import annotations

import math

import pytest
import torch
from support.helpers import make_parameters
from torch.distributions import Beta, Gamma

from fastlbbnn import ConjugatePrior, EmpiricalBayesPrior, FixedPrior, reference
from fastlbbnn.nn.priors import Expectations, kl_from_sums, total_kl

SUMS = torch.tensor([-20.0, 12.0, 30.0, -80.0, 25.0], dtype=torch.float64)
BLOCKS = 40


def test_the_fixed_kl_is_the_written_formula():
    prior = FixedPrior(psi=0.2, sigma2=0.5)
    H, A, A_w, T, S = SUMS.tolist()
    expected = H - math.log(0.2) * A - math.log(0.8) * (BLOCKS - A) + 0.5 * (
        math.log(0.5) * A_w - T + S / 0.5 - A_w
    )
    assert prior.kl(SUMS, BLOCKS).item() == pytest.approx(expected, rel=1e-13)
    assert kl_from_sums(SUMS, BLOCKS, prior.expectations()).item() == pytest.approx(expected, rel=1e-13)


def test_the_papers_fixed_prior():
    prior = FixedPrior.paper(1000)
    assert prior.psi == pytest.approx(1000.0**-2)
    assert prior.sigma2 == 1.0


def test_empirical_bayes_uses_the_expectations_of_its_hyperpriors():
    a_psi, b_psi, a_beta, b_beta = 2.0, 5.0, 3.0, 0.7
    e = EmpiricalBayesPrior(a_psi, b_psi, a_beta, b_beta).double().expectations()
    torch.manual_seed(0)
    psi = Beta(a_psi, b_psi).sample((400_000,)).double()
    sigma2 = 1.0 / Gamma(a_beta, b_beta).sample((400_000,)).double()
    for value, draws in zip(e, (psi.log(), (1 - psi).log(), sigma2.log(), 1 / sigma2)):
        standard_error = draws.std().item() / math.sqrt(len(draws))
        assert abs(float(value) - draws.mean().item()) < 4.0 * standard_error


def test_empirical_bayes_learns_until_frozen():
    prior = EmpiricalBayesPrior()
    prior.kl(SUMS.float(), BLOCKS).backward()
    assert prior.raw_psi.grad.abs().sum() > 0
    assert prior.raw_beta.grad.abs().sum() > 0
    assert prior.hyperparameters() == pytest.approx({"a_psi": 1, "b_psi": 1, "a_beta": 1, "b_beta": 1})
    prior.freeze()
    assert not any(p.requires_grad for p in prior.parameters())


def test_conjugate_posteriors_are_the_coordinate_updates():
    psi, precision = ConjugatePrior(2.0, 3.0, 4.0, 5.0).posterior(SUMS, BLOCKS)
    assert (psi.concentration1.item(), psi.concentration0.item()) == (2.0 + 12.0, 3.0 + 40 - 12.0)
    assert (precision.concentration.item(), precision.rate.item()) == (4.0 + 15.0, 5.0 + 12.5)


def test_the_conjugate_kl_is_the_smallest_over_its_own_family():
    """The coordinate update minimises the KL over q(psi) and q(sigma2): moving them cannot help."""
    prior = ConjugatePrior(2.0, 3.0, 4.0, 5.0)
    best = prior.kl(SUMS, BLOCKS).item()

    def kl_with(psi: Beta, precision: Gamma) -> float:
        e = Expectations(
            torch.digamma(psi.concentration1) - torch.digamma(psi.concentration1 + psi.concentration0),
            torch.digamma(psi.concentration0) - torch.digamma(psi.concentration1 + psi.concentration0),
            precision.rate.log() - torch.digamma(precision.concentration),
            precision.concentration / precision.rate,
        )
        own = torch.distributions.kl_divergence(psi, Beta(*torch.tensor([2.0, 3.0]).double()))
        own = own + torch.distributions.kl_divergence(
            precision, Gamma(*torch.tensor([4.0, 5.0]).double())
        )
        return (kl_from_sums(SUMS, BLOCKS, e) + own).item()

    psi, precision = prior.posterior(SUMS, BLOCKS)
    assert kl_with(psi, precision) == pytest.approx(best, rel=1e-12)
    for factor in (0.9, 1.1):
        assert kl_with(Beta(psi.concentration1 * factor, psi.concentration0), precision) > best
        assert kl_with(psi, Gamma(precision.concentration, precision.rate * factor)) > best


def test_conjugate_gradients_are_those_of_the_minimised_kl():
    """Envelope theorem: treating q as fixed at its optimum gives the total derivative."""
    prior = ConjugatePrior(2.0, 3.0, 4.0, 5.0)
    sums = SUMS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(prior.kl(sums, BLOCKS), sums)
    for i in range(5):
        step = torch.zeros(5, dtype=torch.float64)
        step[i] = 1e-5
        numeric = (prior.kl(SUMS + step, BLOCKS) - prior.kl(SUMS - step, BLOCKS)).item() / 2e-5
        assert gradient[i].item() == pytest.approx(numeric, rel=1e-6)


def test_total_kl_mixes_priors():
    parameters = [p.detach() for p in make_parameters(3, 4)]
    sums = reference.kl_sums(*parameters)
    priors = [FixedPrior(), ConjugatePrior(), FixedPrior(0.3, 2.0), EmpiricalBayesPrior()]
    total = total_kl([([(p, 12)], sums) for p in priors])
    stacked = total_kl([([(p, 12) for p in priors], sums.expand(4, 5).contiguous())])
    torch.testing.assert_close(stacked, total, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(total, sum(p.kl(sums, 12) for p in priors), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedPrior(psi=0.0), "psi=0.0"),
        (lambda: FixedPrior(psi=1.5), "psi=1.5"),
        (lambda: FixedPrior(sigma2=-1.0), "sigma2=-1.0"),
        (lambda: FixedPrior.paper(1), "n=1"),
        (lambda: ConjugatePrior(a_psi=0.0), "a_psi=0.0"),
        (lambda: EmpiricalBayesPrior(b_beta=-2.0), "b_beta=-2.0"),
    ],
)
def test_impossible_priors_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("prior", [FixedPrior(0.3, 0.5), EmpiricalBayesPrior(2.0, 3.0, 4.0, 5.0)])
@pytest.mark.parametrize("odds", [-700.0, -40.0, -2.0, 0.0, 3.0])
def test_log_odds_that_are_set_take_the_place_of_psi(prior, odds):
    """KL = ... - log sigmoid(odds) A - log sigmoid(-odds) (G - A) + ..."""
    prior.set_log_odds(None)
    own = prior.expectations()
    sums, blocks = torch.tensor([-3.0, 4.0, 9.0, -20.0, 6.0]), 10
    without = kl_from_sums(sums, blocks, own._replace(log_psi=0.0, log_one_minus_psi=0.0))
    log_sigmoid = torch.nn.functional.logsigmoid(torch.tensor([odds, -odds], dtype=torch.float64))
    expected = float(without) - float(log_sigmoid[0]) * 4.0 - float(log_sigmoid[1]) * 6.0
    prior.set_log_odds(odds)
    assert float(prior.kl(sums, blocks)) == pytest.approx(expected, rel=1e-6)
    prior.set_log_odds(None)


def test_the_slab_of_a_conjugate_prior_stays_when_its_odds_are_set():
    prior, sums = ConjugatePrior(), torch.tensor([-3.0, 4.0, 9.0, -20.0, 6.0])
    prior.set_log_odds(-1.0)
    at_minus_one = float(prior.kl(sums, 10))
    prior.set_log_odds(1.0)
    # log psi changes by 1 for each included, log(1 - psi) by -1 for each excluded indicator.
    assert float(prior.kl(sums, 10)) - at_minus_one == pytest.approx(
        -4.0 * 1.0 + 6.0 * 1.0, abs=1e-4
    )


def test_log_odds_must_be_finite():
    with pytest.raises(ValueError, match="expected finite log-odds"):
        FixedPrior().set_log_odds(float("nan"))
