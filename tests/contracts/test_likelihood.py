"""Every likelihood keeps its promises, one from outside the package, too; broken ones are told apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn import elbo, predict, set_likelihood
from fastlbbnn.contracts import check_likelihood
from fastlbbnn.inference.families import Gaussian, Poisson
from fastlbbnn.inference.likelihoods import LIKELIHOODS, Likelihood, align, sum_events
from fastlbbnn.nn import MLP


@pytest.mark.parametrize("name", list(LIKELIHOODS))
@pytest.mark.parametrize("outputs", [2, 3])
def test_what_is_registered_keeps_its_promises(name, outputs):
    check_likelihood(LIKELIHOODS[name], outputs=outputs)


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name != "categorical"])
def test_one_output_is_enough_for_all_but_classes(name):
    check_likelihood(LIKELIHOODS[name], outputs=1)


class Exponential(Likelihood):
    """Waiting times with rate exp(output)."""

    name = "exponential"

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        target = align(output, target)
        return sum_events(output - output.exp() * target, target)

    def mean(self, output: Tensor) -> Tensor:
        return (-output).exp()

    def variance(self, output: Tensor) -> Tensor:
        return (-2.0 * output).exp()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.empty_like(output).exponential_(generator=generator) * (-output).exp()


class LearnedScale(Likelihood, nn.Module):
    """A Laplace distribution whose scale is a parameter."""

    name = "learned-scale"

    def __init__(self, log_scale: float = 0.0) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        target, scale = align(output, target), self.log_scale.exp()
        return sum_events(-(output - target).abs() / scale - (2.0 * scale).log(), target)

    def mean(self, output: Tensor) -> Tensor:
        return output

    def variance(self, output: Tensor) -> Tensor:
        return (2.0 * (2.0 * self.log_scale).exp()).expand_as(output).detach()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        u = torch.rand(output.shape, generator=generator) - 0.5
        return output - self.log_scale.exp().detach() * u.sign() * torch.log1p(-2.0 * u.abs())

    def to_config(self):
        return {"name": self.name, "log_scale": self.log_scale.item()}


@pytest.fixture(params=[Exponential, LearnedScale])
def outside(request):
    LIKELIHOODS.register(request.param.name, request.param)
    yield request.param
    LIKELIHOODS.remove(request.param.name)


def test_one_from_outside_is_known_by_its_name(outside):
    check_likelihood(outside)
    torch.manual_seed(0)
    model = MLP(4, 5, 1, likelihood=outside.name)
    assert type(model.likelihood) is outside
    x, y = torch.randn(20, 4), torch.rand(20)
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-2))
    before = {name: p.clone() for name, p in model.named_parameters()}
    for _ in range(3):
        optimizer.backward_step(elbo(model, x, y, n_data=20).loss)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert predict(model, x).shape == (20, 1)
    assert torch.isfinite(fastlbbnn.predict_interval(model, x, of="response", samples=5).upper).all()


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="there is a likelihood 'poisson' already"):
        LIKELIHOODS.register("poisson", Exponential)


# --- broken ones -----------------------------------------------------------------------------------


class Averaged(Gaussian):
    name = "averaged"

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output, target).mean()


class Spreading(Gaussian):
    name = "spreading"

    def fit(self, output: Tensor, target: Tensor) -> Tensor:
        return target

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        return -torch.distributions.Normal(output, 1.0).log_prob(target).sum()


class Flipped(Poisson):
    name = "flipped"

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        return -super().nll(output, target)


class WrongMean(Gaussian):
    name = "wrong-mean"

    def mean(self, output: Tensor) -> Tensor:
        return output + 1.0


class Forgetful(Gaussian):
    name = "forgetful"

    def __init__(self, variance: float = 2.0) -> None:
        super().__init__(variance)

    def to_config(self):
        return {"name": self.name, "variance": 1.0}


class Blind(Gaussian):
    name = "blind"

    def check_values(self, output: Tensor, target: Tensor) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Averaged, "not one per row"),
        (Spreading, "expected a ValueError with both shapes"),
        (Flipped, "not minus the sum of expected_log_prob"),
        (WrongMean, "not the mean of what sample draws"),
        (Forgetful, "comes back from its config with other log-probabilities"),
        (Blind, "lets a NaN pass"),
    ],
)
def test_a_broken_one_is_told_what_is_wrong(kind, message):
    LIKELIHOODS.register(kind.name, kind)
    try:
        with pytest.raises(AssertionError, match=message):
            check_likelihood(kind)
    finally:
        LIKELIHOODS.remove(kind.name)


def test_one_that_is_not_registered_is_told_to_be():
    with pytest.raises(AssertionError, match="register the class under its name"):
        check_likelihood(Exponential)


def test_a_likelihood_with_a_forward_of_its_own_cannot_be_stated():
    class Own(LearnedScale):
        def forward(self, output, target):
            return output

    with pytest.raises(TypeError, match="forward is its own"):
        set_likelihood(MLP(2, 2), Own())
