"""Likelihoods as objects: probabilities, moments and draws are those of torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as d

from fastlbbnn import elbo
from fastlbbnn.inference import likelihoods
from fastlbbnn.inference.families import Bernoulli, Categorical, Gaussian, Poisson
from fastlbbnn.inference.likelihoods import as_likelihood
from fastlbbnn.nn import GaussianLinear


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


#: Likelihood, outputs for 5 observations, targets, and what torch calls it.
CASES = {
    "categorical": (
        Categorical(), normal(5, 3), torch.tensor([0, 2, 1, 1, 0]), lambda o: d.Categorical(logits=o)
    ),
    "bernoulli": (
        Bernoulli(), normal(5, 2), torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]]),
        lambda o: d.Independent(d.Bernoulli(logits=o), 1),
    ),
    "gaussian": (
        Gaussian(0.3), normal(5, 2), normal(5, 2) + 1,
        lambda o: d.Independent(d.Normal(o, math.sqrt(0.3)), 1),
    ),
    "poisson": (
        Poisson(), normal(5, 1), torch.tensor([0, 3, 1, 7, 2]),
        lambda o: d.Independent(d.Poisson(o.exp()), 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_an_observations_each(name):
    likelihood, output, target, distribution = CASES[name]
    full = target[:, None] if name == "poisson" else target
    expected = distribution(output).log_prob(full.double() if name != "categorical" else full)
    assert expected.shape == (5,)
    torch.testing.assert_close(likelihood.log_prob(output, target), expected)
    torch.testing.assert_close(likelihood.expected_log_prob(output, target), expected)
    # A sample axis in front: every draw of the outputs against the same targets.
    draws = torch.stack([output, 2 * output, -output])
    torch.testing.assert_close(
        likelihood.log_prob(draws, target), torch.stack([likelihood.log_prob(o, target) for o in draws])
    )


@pytest.mark.parametrize("name", [n for n in CASES if n != "gaussian"])
def test_names_objects_and_functions_agree(name):
    likelihood, output, target, _ = CASES[name]
    assert type(as_likelihood(name)) is type(likelihood)
    total = -likelihood.log_prob(output, target).sum()
    torch.testing.assert_close(likelihoods.negative_log_likelihood(output, target, name), total)
    torch.testing.assert_close(likelihoods.negative_log_likelihood(output, target, likelihood), total)


@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_the_draws(name):
    likelihood, output, _, _ = CASES[name]
    n = 20_000
    drawn = likelihood.sample(output.expand(n, *output.shape), torch.Generator().manual_seed(0))
    if name == "categorical":
        assert drawn.shape == (n, 5)
        drawn = torch.nn.functional.one_hot(drawn, 3)
    drawn = drawn.double()
    mean, variance = likelihood.mean(output), likelihood.variance(output)
    assert drawn.shape == (n, *output.shape)
    assert mean.shape == variance.shape == output.shape
    # Four and a half standard errors, of at most ten means.
    assert ((drawn.mean(0) - mean).abs() < 4.5 * (variance / n).sqrt()).all()
    fourth = (drawn - mean).pow(4).mean(0)
    error = (fourth - variance**2).clamp_min(0).div(n).sqrt()
    assert ((drawn - mean).square().mean(0) - variance).abs().le(4.5 * error + 1e-12).all()


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_generator(name):
    likelihood, output, _, _ = CASES[name]
    one, two = (likelihood.sample(output, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)


def test_an_object_serves_the_objective():
    torch.manual_seed(0)
    model = GaussianLinear(4, 3)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    by_name = elbo(model, x, y, n_data=6, samples=3, likelihood="categorical", generator=seeds[0])
    by_object = elbo(model, x, y, n_data=6, samples=3, likelihood=Categorical(), generator=seeds[1])
    torch.testing.assert_close(by_name.loss, by_object.loss)


def test_parameters_that_there_are_none_of():
    likelihood = Poisson()
    assert likelihood.draw(5) is likelihood and likelihood.plug_in() is likelihood


def test_a_variance_for_each_draw():
    variances = torch.tensor([0.5, 2.0])[:, None, None]
    output, target = torch.zeros(2, 3, 1), torch.ones(3)
    expected = torch.stack([Gaussian(v.item()).log_prob(output[0], target) for v in variances])
    torch.testing.assert_close(Gaussian(variances).log_prob(output, target), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: as_likelihood("normal"), ValueError, "likelihood='normal'; expected one of 'categorical'"),
        (lambda: as_likelihood(lambda o, y: o), TypeError, "says nothing about responses"),
        (lambda: Gaussian(0.0), ValueError, "expected a positive number"),
        (lambda: Gaussian(torch.tensor([1.0, -1.0])), ValueError, "expected a positive number"),
        # Square outputs, one target per row: not to be broadcast in silence.
        (lambda: Gaussian().log_prob(torch.ones(3, 3), torch.ones(3)), ValueError, r"target \[3\]"),
        (lambda: Poisson().log_prob(torch.ones(2, 4, 1), torch.ones(2, 4)), ValueError, r"target \[2, 4\]"),
        (lambda: Categorical().log_prob(torch.ones(4, 2), torch.ones(2)), ValueError, "class indices"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
