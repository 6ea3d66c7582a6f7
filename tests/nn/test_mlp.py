"""MLP: an nn.Sequential of Bayesian layers that computes in one operator where it can."""

from __future__ import annotations

import copy

import pytest
import torch
from support.helpers import EPS32
from torch import nn

import fastlbbnn
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear, WeightMode, expand_samples, weights
from fastlbbnn.nn import mlp as mlp_module

SIZES = (13, 21, 8, 5)


def pair(**kwargs) -> tuple[MLP, nn.Sequential]:
    """The same network as MLP and as nn.Sequential."""
    torch.manual_seed(0)
    mlp = MLP(*SIZES, **kwargs)
    return mlp, nn.Sequential(*copy.deepcopy(list(mlp)))


@pytest.fixture
def fused_calls(monkeypatch) -> list[int]:
    """Grows by one with every pass through the fused operator."""
    calls: list[int] = []
    original = mlp_module.call

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(mlp_module, "call", counted)
    return calls


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Three layers, whose dot products of at most 21 terms may be summed in another order."""
    tolerance = 3 * 21 * EPS32 * expected.abs().max().item()
    torch.testing.assert_close(got, expected, rtol=0.0, atol=tolerance)


def test_structure_and_state_are_those_of_a_sequential():
    mlp, sequential = pair()
    assert [type(m) for m in mlp] == [LBBNNLinear, nn.ReLU, LBBNNLinear, nn.ReLU, LBBNNLinear]
    assert list(mlp.state_dict()) == list(sequential.state_dict())
    sequential.load_state_dict(mlp.state_dict())
    assert [type(m) for m in MLP(4, 2, layer=GaussianLinear)] == [GaussianLinear]


@pytest.mark.parametrize("layer", [LBBNNLinear, GaussianLinear])
@pytest.mark.parametrize("estimator", ["concrete", "local"])
@pytest.mark.parametrize("mode", list(WeightMode))
def test_every_mode_draws_what_a_sequential_draws(layer, estimator, mode, fused_calls):
    mlp, sequential = pair(layer=layer, estimator=estimator)
    x = torch.randn(6, SIZES[0])
    results = []
    for model in (mlp, sequential):
        with weights(mode, generator=torch.Generator().manual_seed(4)):
            results.append(model(x))
    assert_close(*results)
    assert len(fused_calls) == (1 if mode.random else 0)


@pytest.mark.parametrize("shared", [True, False])
def test_samples(shared):
    mlp, sequential = pair()
    x = expand_samples(torch.randn(6, SIZES[0]), 4) if shared else torch.randn(4, 6, SIZES[0])
    results = []
    for model in (mlp, sequential):
        with weights("sampled", samples=4, generator=torch.Generator().manual_seed(4)):
            results.append(model(x))
    assert results[0].shape == (4, 6, SIZES[-1])
    assert_close(*results)


def test_leading_axes_are_kept():
    mlp, _ = pair()
    assert mlp(torch.randn(2, 3, SIZES[0])).shape == (2, 3, SIZES[-1])


@pytest.mark.parametrize("own", [True, False])
def test_training_is_that_of_a_sequential(own):
    models = pair()
    for model in models:
        optimizer = (fastlbbnn.Adam if own else torch.optim.Adam)(fastlbbnn.param_groups(model, weights=1e-2))
        for i in range(5):
            g = torch.Generator().manual_seed(i)
            x, y = torch.randn(7, SIZES[0], generator=g), torch.randint(SIZES[-1], (7,), generator=g)
            loss = fastlbbnn.elbo(model, x, y, n_data=100, generator=g, likelihood="categorical").loss
            if own:
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for a, b in zip(*(m.parameters() for m in models)):
        # Five steps of at most 1e-2; Adam divides rounding errors by the gradients' size, so that a
        # gradient that is 100 EPS32 off moves a step by 1e-5 of it.
        torch.testing.assert_close(a, b, rtol=0.0, atol=5 * (1e-2 * 1e-4 + b.abs().max().item() * EPS32))


def test_the_objective_is_that_of_a_sequential():
    mlp, sequential = pair(prior=fastlbbnn.ConjugatePrior())
    x, y = torch.randn(7, SIZES[0]), torch.randint(SIZES[-1], (7,))
    first, second = (
        fastlbbnn.elbo(
            m, x, y, n_data=100, samples=3, likelihood="categorical",
            generator=torch.Generator().manual_seed(1),
        )
        for m in (mlp, sequential)
    )
    assert_close(first.kl, second.kl)
    assert_close(first.loss, second.loss)


def test_what_cannot_be_fused_goes_layer_by_layer(fused_calls):
    x = torch.randn(6, SIZES[0])
    mixed = MLP(*SIZES, estimator="concrete")
    mixed[2].estimator = "local"
    mixed(x)
    watched, seen = MLP(*SIZES, estimator="concrete"), []
    watched[1].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    watched(x)
    changed = MLP(*SIZES, estimator="concrete")
    changed[1] = nn.Tanh()
    changed(x)
    sampled = MLP(*SIZES, estimator="concrete")
    fastlbbnn.elbo(
        sampled, x, torch.zeros(6, dtype=torch.long), n_data=10, kl="sampled", likelihood="categorical"
    )
    assert seen == [(6, SIZES[1])]
    assert not fused_calls
    MLP(*SIZES, estimator="concrete")(x)
    MLP(*SIZES, estimator="local")(x)
    assert len(fused_calls) == 2


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("mode", [None, "median", "sampled"])
@pytest.mark.parametrize("how", [{}, {"inclusion": "mvn"}, {"bias": False}], ids=str)
def test_local_reparametrisation_is_that_of_a_sequential_to_the_bit(how, mode, samples):
    """The operators are the same, with one node of the graph around them."""
    models = pair(estimator="local", **how)
    x, y = torch.randn(7, SIZES[0]), torch.randint(SIZES[-1], (7,))
    found = []
    for model in models:
        torch.manual_seed(3)
        bound = fastlbbnn.elbo(model, x, y, n_data=90, likelihood="categorical", samples=samples, mode=mode)
        bound.loss.backward()
        grads = [torch.zeros(()) if p.grad is None else p.grad for p in model.parameters()]
        optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-2))
        for _ in range(3):
            loss = fastlbbnn.elbo(model, x, y, n_data=90, likelihood="categorical", samples=samples, mode=mode)
            optimizer.backward_step(loss)
        found.append([bound.loss, bound.output, *grads, *model.parameters()])
    if samples > 1 and "inclusion" in how:
        # Each draw has logits of its own, whose gradients are added in another order.
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    else:
        assert all(torch.equal(a, b) for a, b in zip(*found))


def test_a_second_derivative_of_local_reparametrisation_is_refused():
    mlp, _ = pair(estimator="local")
    x = torch.randn(6, SIZES[0], requires_grad=True)
    (gradient,) = torch.autograd.grad(mlp(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="local_mlp was differentiated twice"):
        gradient.sum().backward()


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least inputs and outputs"):
        MLP(3)
    with pytest.raises(ValueError, match="expected a last axis of 13"):
        MLP(*SIZES)(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="float64"):
        MLP(*SIZES)(torch.zeros(2, SIZES[0], dtype=torch.float64))
