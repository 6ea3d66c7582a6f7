"""The scale-mixture prior: its density, the KL's estimate, and the fused passes around it."""

from __future__ import annotations

import math

import pytest
import torch
from support.helpers import EPS32, assert_agrees, make_parameters
from torch.distributions import Categorical, MixtureSameFamily, Normal

from fastlbbnn import ops, reference
from fastlbbnn.nn import MixtureLinear, weights
from fastlbbnn.nn.passes import recorded_pass
from fastlbbnn.reference import ScaleMixture

PAPER = ScaleMixture(0.5, 1.0, math.exp(-6.0))
PRIORS = [PAPER, ScaleMixture(0.9, 2.0, 0.5), ScaleMixture(0.1, 4.0, 1e-6)]
SEED = torch.tensor(12345)


def distribution(prior: ScaleMixture) -> MixtureSameFamily:
    pi, wide, narrow = prior
    probabilities = torch.tensor([pi, 1.0 - pi], dtype=torch.float64)
    deviations = torch.tensor([wide, narrow], dtype=torch.float64).sqrt()
    return MixtureSameFamily(Categorical(probabilities), Normal(torch.zeros(2).double(), deviations))


@pytest.mark.parametrize("prior", PRIORS)
def test_the_density_is_the_mixtures(prior):
    w = torch.cat((torch.linspace(-12.0, 12.0, 401), torch.linspace(-0.2, 0.2, 401))).double()
    # A dozen roundings of numbers below 100.
    expected = distribution(prior).log_prob(w)
    torch.testing.assert_close(prior.log_density(w), expected, rtol=1e-13, atol=1e-12)


def test_the_papers_prior_is_the_default_with_variances():
    pi, wide, narrow = MixtureLinear(2, 2).prior
    assert (pi, wide, narrow) == (0.5, 1.0, math.exp(-6.0))


def exact_kl(mean: torch.Tensor, deviation: torch.Tensor, prior: ScaleMixture) -> torch.Tensor:
    """KL of N(mean, deviation^2) from the mixture, by the trapezoidal rule over 12 deviations, in float64.

    The integrand is smooth on the scale of the narrow part or of the posterior, and vanishes at the ends:
    4001 nodes are exact to rounding.
    """
    t = torch.linspace(-12.0, 12.0, 4001, dtype=torch.float64)
    w = mean.double().unsqueeze(-1) + deviation.double().unsqueeze(-1) * t
    log_q = Normal(mean.double().unsqueeze(-1), deviation.double().unsqueeze(-1)).log_prob(w)
    density = torch.exp(-0.5 * t.square()) / math.sqrt(2.0 * math.pi)
    return torch.trapezoid(density * (log_q - distribution(prior).log_prob(w)), t).sum()


@pytest.mark.parametrize("prior", PRIORS[:2])
def test_the_kl_is_estimated_without_bias(prior):
    parameters = make_parameters(5, 7, gated=False)
    kappa, rho, bias_kappa, bias_rho = (p.detach() for p in parameters if p is not None)
    exact = exact_kl(kappa, reference.softplus(rho), prior)
    exact = exact + exact_kl(bias_kappa, reference.softplus(bias_rho), prior)
    nothing = torch.empty(0, 7)
    draws = torch.stack([
        ops.mixture_linear(nothing, kappa, rho, bias_kappa, bias_rho, prior)[1] for _ in range(1000)
    ]).double()
    assert abs(draws.mean() - exact) < 4.0 * draws.std() / math.sqrt(len(draws))


def test_one_wide_gaussian_is_the_limit_of_a_likely_wide_part():
    kappa, rho, _, bias_kappa, bias_rho = make_parameters(3, 4, gated=False, dtype=torch.float64)
    prior = ScaleMixture(1.0 - 1e-12, 1.5, 0.1)
    x = torch.zeros(1, 4, dtype=torch.float64)
    samples = 3
    _, kl = reference.mixture_linear(
        x, kappa, rho, bias_kappa, bias_rho, prior, seed=SEED, samples=samples
    )
    draws = [reference.sample_weights(kappa, rho, None, seed=SEED, sample=s) for s in range(samples)]
    draws += [reference.sample_bias(bias_kappa, bias_rho, seed=SEED, sample=s) for s in range(samples)]
    wide = Normal(torch.zeros((), dtype=torch.float64), math.sqrt(1.5))
    log_p = sum(wide.log_prob(w).sum() for w in draws) / samples
    entropy = sum(Normal(0.0, reference.softplus(r)).entropy().sum() for r in (rho, bias_rho))
    # What remains of the narrow part: 1e-12 of odds for each of 15 weights.
    torch.testing.assert_close(kl, -entropy - log_p, rtol=0.0, atol=1e-9)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rows", "cols", "batch", "samples"), [(13, 41, 7, 1), (5, 33, 4, 3), (1, 1, 1, 1), (4, 64, 0, 2)]
)
def test_the_fused_passes_agree_with_the_reference(rows, cols, batch, samples, bias, prior):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(batch, cols, generator=g)
    dy, results = torch.randn(samples, batch, rows, generator=g), []
    kinds = (("cpp", torch.float32), ("reference", torch.float32), ("reference", torch.float64))
    for backend, dtype in kinds:
        kappa, rho, _, *of_bias = make_parameters(rows, cols, gated=False, bias=bias, dtype=dtype)
        inputs = x.to(dtype).requires_grad_()
        y, kl = ops.mixture_linear(
            inputs, kappa, rho, *of_bias, prior, seed=SEED, samples=samples, backend=backend
        )
        leaves = [p for p in (inputs, kappa, rho, *of_bias) if p is not None]
        grads = torch.autograd.grad((y * dy.to(dtype)).sum() + 0.3 * kl, leaves)
        results.append((y, kl, *grads))
    names = ("y", "kl", "dx", "dkappa", "drho", "dbias_kappa", "dbias_rho")
    # A relative error r of a weight changes t by d w^2 r, and the prior's slope in proportion. Where that
    # is worse than 2 (c + 17) r, sigmoid(t) is below exp(-17), which is EPS32, and counts for nothing. A
    # draw's r is a few EPS32 in either implementation, and one weight alone may be exact by luck.
    extra = 2.0 * (prior.c + 17.0) * 4.0 * EPS32
    for name, got, plain, exact in zip(names, *results):
        assert_agrees(name, got, plain, exact, extra=extra if name[0] == "d" else 0.0)


def test_the_kl_is_that_of_the_weights_which_computed_the_outputs():
    layer = MixtureLinear(4, 3, bias=False)
    with recorded_pass() as recorded:
        w = layer(torch.eye(4)).T  # the outputs of unit inputs are the weights
    (kl,) = recorded.kls.values()
    entropy = Normal(0.0, reference.softplus(layer.rho)).entropy().sum()
    expected = -entropy - distribution(PAPER).log_prob(w.double()).sum()
    # Twelve float32 terms of at most about 10 each.
    torch.testing.assert_close(kl.double(), expected.double(), rtol=1e-5, atol=1e-4)


def test_half_precision_inputs_are_computed_with_in_float32():
    kappa, rho, _, *bias = make_parameters(5, 7, gated=False)
    x = torch.randn(3, 7).bfloat16()
    y, kl = ops.mixture_linear(x, kappa, rho, *bias, PAPER, seed=SEED)
    exact, same = ops.mixture_linear(x.float(), kappa, rho, *bias, PAPER, seed=SEED)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, exact.bfloat16()) and torch.equal(kl, same)


def test_predictions_make_the_same_draws_without_the_kl():
    layer, outputs = MixtureLinear(6, 5), []
    x = torch.randn(4, 6)
    with weights("sampled", generator=torch.Generator().manual_seed(0)):
        outputs.append(layer(x))
    with weights("sampled", generator=torch.Generator().manual_seed(0)), recorded_pass():
        outputs.append(layer(x))
    assert torch.equal(*outputs)


@pytest.mark.usefixtures("cpp")
def test_the_same_call_twice_gives_the_same_bits():
    kappa, rho, _, *bias = make_parameters(70, 90, gated=False)
    x, results = torch.randn(20, 90), []
    for _ in range(2):
        y, kl = ops.mixture_linear(x, kappa, rho, *bias, PAPER, seed=SEED)
        results.append((y, kl, *torch.autograd.grad(y.sum() + kl, (kappa, rho, *bias))))
    assert all(torch.equal(a, b) for a, b in zip(*results))


@pytest.mark.usefixtures("cpp")
def test_a_second_derivative_is_refused():
    kappa, rho, _, *bias = make_parameters(3, 4, gated=False)
    y, kl = ops.mixture_linear(torch.randn(2, 4), kappa, rho, *bias, PAPER, seed=SEED)
    (grad,) = torch.autograd.grad(y.square().sum() + kl, kappa, create_graph=True)
    with pytest.raises(RuntimeError, match="mixture_linear was differentiated twice"):
        grad.sum().backward()


def test_without_data_the_kl_finds_the_gaussian_nearest_to_the_mixture():
    torch.manual_seed(0)
    layer = MixtureLinear(5, 4)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for step in range(1000):
        optimizer.param_groups[0]["lr"] = 1e-2 if step < 400 else 1e-3
        optimizer.zero_grad()
        layer.kl().backward()
        optimizer.step()
    deviations = torch.linspace(0.03, 0.12, 91, dtype=torch.float64)
    divergences = torch.stack([exact_kl(torch.zeros(1), s.reshape(1), PAPER) for s in deviations])
    best, least = deviations[divergences.argmin()], divergences.min()
    # Adam's steps of 0.001 under the noise of single draws wander by a few of them.
    assert layer.kappa.abs().max() < 0.5 * best
    assert abs(reference.softplus(layer.rho).mean().item() / best - 1.0) < 0.2
    reached = sum(
        exact_kl(mean.detach(), reference.softplus(rho.detach()), PAPER)
        for mean, rho in ((layer.kappa, layer.rho), (layer.bias_kappa, layer.bias_rho))
    )
    assert reached / 24 < least + 0.02


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"pi": 0.0}, "pi=0.0"),
        ({"pi": 1.0}, "one Gaussian alone is GaussianLinear"),
        ({"variances": (1e-3, 1.0)}, "the larger one first"),
        ({"variances": (1.0, 1.0)}, "the larger one first"),
        ({"variances": (1.0, 0.0)}, "two positive numbers"),
        ({"variances": (1e30, 1e-30)}, "expected closer variances"),
    ],
)
def test_bad_priors_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MixtureLinear(2, 2, **kwargs)
