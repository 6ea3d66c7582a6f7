"""Layers of a fixed structure: the median model of a dense network, at the cost of what it keeps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fastlbbnn
from fastlbbnn.nn import MLP, FixedLinear, FixedMLP, LBBNNLinear, weights
from fastlbbnn.nn import fixed as fixed_module
from fastlbbnn.nn.priors import ConjugatePrior, EmpiricalBayesPrior, FixedPrior
from fastlbbnn.ops.fixed_mlp import Support

SIZES = (13, 21, 8, 5)
PRIORS = [FixedPrior(0.2, 0.5), EmpiricalBayesPrior(2.0, 3.0, 2.0, 1.5), ConjugatePrior(2.0, 3.0, 2.0, 1.5)]


def make_model(**kwargs) -> MLP:
    torch.manual_seed(0)
    model = MLP(*SIZES, **{"estimator": "local", "likelihood": "categorical", **kwargs})
    for layer in model:
        if isinstance(layer, LBBNNLinear):
            layer.omega.data.normal_(-0.5, 1.0)
    return model


def make_batch(batch: int = 30):
    g = torch.Generator().manual_seed(4)
    return torch.randn(batch, SIZES[0], generator=g), torch.randint(5, (batch,), generator=g)


def bound(model, x, y, mode=None, seed=0, **kwargs):
    return fastlbbnn.elbo(
        model, x, y, n_data=100, mode=mode, generator=torch.Generator().manual_seed(seed), **kwargs
    )


@pytest.mark.parametrize("prior", PRIORS, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("options", [
    {"estimator": "local"}, {"estimator": "concrete"}, {"estimator": "concrete", "block": (3, 2)},
    {"estimator": "local", "bias": False},
])  # fmt: skip
@pytest.mark.parametrize("samples", [1, 3])
def test_the_bound_and_its_gradients_are_those_of_the_median_model(options, prior, samples, backend):
    """The same seeds: to rounding, in sums of at most 21 products over three layers."""
    model = make_model(prior=prior, **options)
    x, y = make_batch()
    with fastlbbnn.use_backend(backend):
        dense = bound(model, x, y, "median", samples=samples)
        dense.loss.backward()
        fixed = FixedMLP.of(model)
        own = bound(fixed, x, y, samples=samples)
        own.loss.backward()
    torch.testing.assert_close(own.kl, dense.kl, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(own.log_likelihood, dense.log_likelihood, rtol=1e-5, atol=1e-4)
    for layer, kept in zip(list(model)[::2], fixed.layers()):
        at = kept.support.by_rows()
        for name in ("kappa", "rho"):
            expected = getattr(layer, name).grad[at]
            scale = expected.abs().max().item()
            torch.testing.assert_close(getattr(kept, name).grad, expected, rtol=1e-4, atol=1e-5 * scale)
        if kept.bias_kappa is not None:
            torch.testing.assert_close(kept.bias_kappa.grad, layer.bias_kappa.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode,own", [("median", "median"), ("median-mean", "mean"), ("median", "sampled")])
def test_predictions_are_those_of_the_median_model(mode, own):
    model = make_model()
    fixed = FixedMLP.of(model).eval()
    x, _ = make_batch()
    results = []
    for network, how in ((model.eval(), mode), (fixed, own)):
        with torch.no_grad(), weights(how, generator=torch.Generator().manual_seed(1)):
            results.append(network(x))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_one_call_is_the_layers_in_turn(monkeypatch):
    fixed = FixedMLP.of(make_model())
    loose = nn.Sequential(*copy.deepcopy(list(fixed)))
    x, _ = make_batch()
    calls, original = [], fixed_module.call
    monkeypatch.setattr(fixed_module, "call", lambda *a, **k: calls.append(1) or original(*a, **k))
    results = []
    for network in (fixed, loose):
        with weights(generator=torch.Generator().manual_seed(1)):
            results.append(network(x))
    assert len(calls) == 1 + 3
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_hooks_are_called():
    fixed, seen = FixedMLP.of(make_model()), []
    fixed[0].register_forward_hook(lambda *_: seen.append(1))
    fixed(make_batch()[0])
    assert seen == [1]


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
def test_a_step_in_the_backward_pass_is_an_ordinary_step(estimator):
    """Ten steps of Adam, in which rounding errors of 2^-24 may grow."""
    x, y = make_batch()
    results = []
    for inside in (True, False):
        fixed = FixedMLP.of(make_model(), estimator=estimator)
        optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(fixed, weights=1e-3))
        for step in range(10):
            loss = bound(fixed, x, y, seed=step).loss
            if inside:
                optimizer.backward_step(loss)
                assert all(p.grad is None for p in fixed.layers()[0].parameters())
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        results.append([p.detach().clone() for p in fixed.parameters()])
    for one, two in zip(*results):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_training_lowers_the_loss_and_writes_back_what_is_kept():
    model = make_model()
    before = copy.deepcopy(model)
    fixed = FixedMLP.of(model)
    x, y = make_batch()
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(fixed, weights=1e-2))
    costs = []
    for step in range(200):
        found = bound(fixed, x, y, seed=step)
        costs.append(-found.log_likelihood.item())
        optimizer.backward_step(found.loss)
    assert sum(costs[-10:]) < 0.8 * sum(costs[:10])
    fixed.write_to(model)
    for new, old, layer in zip(list(model)[::2], list(before)[::2], fixed.layers()):
        kept = new.kept()
        assert torch.equal(new.kappa[~kept], old.kappa[~kept]) and torch.equal(new.omega, old.omega)
        assert torch.equal(new.kappa[kept], layer.kappa) and not torch.equal(new.kappa[kept], old.kappa[kept])
        assert torch.equal(new.bias_rho, layer.bias_rho)


def test_state_goes_on_to_the_bit():
    """Also into a module of another structure with as many weights: the state says where they stand."""
    x, y = make_batch()

    def steps(network, optimizer, first, last):
        for step in range(first, last):
            optimizer.backward_step(bound(network, x, y, seed=step).loss)

    whole = FixedMLP.of(make_model())
    optimizer = fastlbbnn.Adam(whole.parameters(), lr=1e-3)
    steps(whole, optimizer, 0, 4)
    state, adam = copy.deepcopy(whole.state_dict()), copy.deepcopy(optimizer.state_dict())
    steps(whole, optimizer, 4, 8)

    g = torch.Generator().manual_seed(8)
    others = []
    for layer in whole.layers():
        shuffled = torch.zeros(layer.out_features * layer.in_features, dtype=torch.bool)
        shuffled[torch.randperm(len(shuffled), generator=g)[: layer.kappa.numel()]] = True
        mask = shuffled.view(layer.out_features, layer.in_features)
        others.append(FixedLinear(Support.of_mask(mask)))
    again = FixedMLP(*others)
    again.likelihood = whole.likelihood
    again.load_state_dict(state)
    optimizer = fastlbbnn.Adam(again.parameters(), lr=1e-3)
    optimizer.load_state_dict(adam)
    steps(again, optimizer, 4, 8)
    for one, two in zip(whole.parameters(), again.parameters()):
        assert torch.equal(one, two)


def test_densities_and_kl_stand_for_the_whole_layer():
    model = make_model()
    fixed = FixedMLP.of(model)
    kept = sum(int(layer.kept().sum()) for layer in list(model)[::2])
    total = sum(layer.kappa.numel() for layer in list(model)[::2])
    assert fastlbbnn.density(fixed) == pytest.approx(kept / total)
    with torch.no_grad():
        own = fastlbbnn.kl(fixed)
        left = bound(fixed, *make_batch()).kl
    torch.testing.assert_close(own, left, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("make,error,message", [
    (lambda: FixedMLP(), ValueError, "no layers"),
    (lambda: FixedMLP(nn.Linear(3, 2)), TypeError, "layer 0 is a Linear"),
    (lambda: FixedMLP.of(nn.Linear(3, 2)), TypeError, "not a plain perceptron"),
    (lambda: FixedMLP.of(make_model(), kept=[torch.ones(21, 13, dtype=torch.bool)]), ValueError, "1 masks"),
    (lambda: FixedLinear(Support.of_mask(torch.ones(3, 2) > 0), estimator="concrete"), ValueError, "expected one"),
    (lambda: FixedMLP.of(make_model()).write_to(nn.Linear(3, 2)), ValueError, "not the network"),
    (lambda: bound(FixedMLP.of(make_model()), *make_batch(), kl="sampled"), ValueError, "kl='sampled'"),
])  # fmt: skip
def test_what_does_not_fit_is_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("mode", [None, "sampled", "mean"])
def test_an_empty_batch_has_no_outputs(mode):
    fixed = FixedMLP.of(make_model())
    with weights(mode):
        assert fixed(torch.empty(0, SIZES[0])).shape == (0, SIZES[-1])


def test_half_precision_inputs_beside_float32_parameters():
    fixed = FixedMLP.of(make_model())
    x, _ = make_batch()
    results = []
    for given in (x.bfloat16(), x.bfloat16().float()):
        with weights(generator=torch.Generator().manual_seed(1)):
            results.append(fixed(given))
    assert results[0].dtype is torch.bfloat16
    torch.testing.assert_close(results[0], results[1].bfloat16())


def test_leading_axes_are_one_batch():
    fixed = FixedMLP.of(make_model()).eval()
    x = torch.randn(2, 3, SIZES[0])
    torch.testing.assert_close(fixed(x), fixed(x.view(6, -1)).view(2, 3, -1))
    with pytest.raises(ValueError, match="expected a last axis of 13"):
        fixed(torch.randn(2, 12))


@pytest.mark.usefixtures("cpp")
def test_a_compiled_module_is_the_eager_one():
    fixed = FixedMLP.of(make_model(), estimator="means")
    x, _ = make_batch()
    torch.testing.assert_close(torch.compile(fixed, fullgraph=True)(x), fixed(x), rtol=1e-5, atol=1e-6)
