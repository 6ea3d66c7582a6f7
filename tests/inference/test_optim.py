"""Parameter groups, and the Adam that updates inside the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from support.helpers import EPS32
from torch import nn

import fastlbbnn
from fastlbbnn.inference.optim import Adam, param_groups
from fastlbbnn.nn import GaussianLinear, LBBNNLinear

SIZES = {"weights": 1e-2, "inclusion": 3e-2}


def make_model(layer=LBBNNLinear, estimator="concrete", **kwargs) -> nn.Sequential:
    torch.manual_seed(0)
    make = lambda a, b: layer(a, b, estimator=estimator, **kwargs)  # noqa: E731
    return nn.Sequential(make(13, 21), nn.ReLU(), nn.LayerNorm(21), make(21, 5))


def batches(count: int):
    g = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(7, 13, generator=g), torch.randint(5, (7,), generator=g)


def train(model, optimizer, steps, in_pass):
    for i, (x, y) in enumerate(batches(steps)):
        torch.manual_seed(100 + i)
        loss = fastlbbnn.elbo(model, x, y, n_data=200, likelihood="categorical").loss
        if in_pass:
            optimizer.backward_step(loss)
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def assert_same_parameters(got: nn.Module, expected: nn.Module, steps: int) -> None:
    """Two runs of Adam that round differently, after a few steps.

    A step moves a parameter by at most about its step size (0.03), so rounding the update (a few EPS32
    of it, plus one of the parameter) over ``steps`` steps gives steps * (4 * 0.03 + |p|) * EPS32. The
    gradients' own rounding is divided by their root mean square, and where that is tiny the quotient
    is ill-conditioned: 1e-5 of a step size per step covers gradients 100 times EPS32 off.
    """
    for (name, a), (_, b) in zip(got.named_parameters(), expected.named_parameters()):
        tolerance = steps * (0.03 * 1e-4 + (0.12 + b.abs().max().item()) * EPS32)
        torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("estimator", ["concrete", "local"])
@pytest.mark.parametrize("layer", [LBBNNLinear, GaussianLinear])
def test_updates_in_the_backward_pass_match_torch_adam(backend, layer, estimator):
    model = make_model(layer, estimator)
    other = copy.deepcopy(model)
    with fastlbbnn.use_backend(backend):
        train(model, Adam(param_groups(model, **SIZES)), 5, in_pass=True)
        train(other, torch.optim.Adam(param_groups(other, **SIZES)), 5, in_pass=False)
    assert_same_parameters(model, other, 5)


def test_blocks_are_updated_too():
    model = make_model(block=(4, 3))
    other = copy.deepcopy(model)
    train(model, Adam(param_groups(model, **SIZES)), 5, in_pass=True)
    train(other, torch.optim.Adam(param_groups(other, **SIZES)), 5, in_pass=False)
    assert_same_parameters(model, other, 5)


@pytest.mark.usefixtures("cpp")
def test_gradients_are_never_written():
    model = make_model()
    optimizer = Adam(param_groups(model))
    train(model, optimizer, 1, in_pass=True)
    assert model[0].kappa.grad is None
    assert model[0].inclusion.omega.grad is None
    assert model[2].weight.grad is not None  # LayerNorm takes the ordinary way


def test_state_dicts_are_those_of_torch_adam():
    ours, theirs = make_model(), make_model()
    optimizer = Adam(param_groups(ours, **SIZES))
    other = torch.optim.Adam(param_groups(theirs, **SIZES), fused=True)
    train(ours, optimizer, 3, in_pass=True)
    train(theirs, other, 3, in_pass=False)
    a, b = optimizer.state_dict(), other.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for i in b["state"]:
        assert a["state"][i].keys() == b["state"][i].keys()
        assert a["state"][i]["step"] == b["state"][i]["step"] == 3.0
        for name in ("exp_avg", "exp_avg_sq"):
            assert a["state"][i][name].shape == b["state"][i][name].shape


@pytest.mark.parametrize("first,second", [(True, False), (False, True), (True, True)])
def test_training_goes_on_from_either_optimisers_state(tmp_path, first, second):
    def make(model, in_pass):
        return (Adam if in_pass else torch.optim.Adam)(param_groups(model, **SIZES))

    model = make_model()
    optimizer = make(model, first)
    train(model, optimizer, 3, in_pass=first)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")

    saved = torch.load(tmp_path / "a.pt", weights_only=True)
    resumed = make_model()
    resumed.load_state_dict(saved["model"])
    other = make(resumed, second)
    other.load_state_dict(saved["optimizer"])
    train(resumed, other, 2, in_pass=second)
    train(model, optimizer, 2, in_pass=first)
    assert_same_parameters(resumed, model, 5)


def test_learning_rates_may_change_between_steps():
    model = make_model()
    other = copy.deepcopy(model)
    a, b = Adam(param_groups(model, **SIZES)), torch.optim.Adam(param_groups(other, **SIZES))
    for optimizer, net, in_pass in ((a, model, True), (b, other, False)):
        train(net, optimizer, 2, in_pass)
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
        train(net, optimizer, 2, in_pass)
    assert_same_parameters(model, other, 4)


def test_frozen_parameters_stay():
    model = make_model()
    model[0].inclusion.requires_grad_(False)
    before = model[0].inclusion.omega.clone()
    kappa = model[0].kappa.detach().clone()
    train(model, Adam(param_groups(model)), 2, in_pass=True)
    assert torch.equal(model[0].inclusion.omega, before)
    assert not torch.equal(model[0].kappa, kappa)


@pytest.mark.parametrize("extra", [{"weight_decay": 0.1}, {"maximize": True}])
def test_more_than_plain_adam_takes_the_ordinary_way(extra):
    model = make_model()
    other = copy.deepcopy(model)
    train(model, Adam(param_groups(model, **SIZES), **extra), 3, in_pass=True)
    train(other, torch.optim.Adam(param_groups(other, **SIZES), **extra), 3, in_pass=False)
    assert_same_parameters(model, other, 3)


@pytest.mark.usefixtures("cpp")
def test_a_layer_used_twice_is_refused():
    layer = LBBNNLinear(6, 6)
    optimizer = Adam(layer.parameters())
    loss = layer(layer(torch.randn(3, 6))).sum()
    with pytest.raises(RuntimeError, match="more than once"):
        optimizer.backward_step(loss)


@pytest.mark.usefixtures("cpp")
def test_a_second_gradient_from_elsewhere_is_refused():
    layer = LBBNNLinear(6, 6)
    optimizer = Adam(layer.parameters())
    loss = layer(torch.randn(3, 6)).sum() + layer.kl()
    with pytest.raises(RuntimeError, match="more than once"):
        optimizer.backward_step(loss)


def test_parameters_left_out_of_the_optimiser_get_gradients():
    layer = LBBNNLinear(6, 6)
    optimizer = Adam([layer.kappa])
    optimizer.backward_step(layer(torch.randn(3, 6)).sum())
    assert layer.rho.grad is not None


def test_amsgrad_is_refused():
    with pytest.raises(ValueError, match="amsgrad"):
        Adam(LBBNNLinear(2, 2).parameters(), amsgrad=True)


def test_param_groups_have_a_step_size_per_kind():
    sizes = {"weights": 1e-4, "inclusion": 1e-1, "psi": 1e-3, "sigma2": 1e-5}
    model = make_model(prior=fastlbbnn.EmpiricalBayesPrior())
    groups = {g["name"]: g for g in param_groups(model, **sizes)}
    assert {n: g["lr"] for n, g in groups.items()} == sizes
    assert {id(p) for p in groups["inclusion"]["params"]} == {
        id(model[0].inclusion.omega), id(model[3].inclusion.omega)
    }
    assert sum(len(g["params"]) for g in groups.values()) == len(list(model.parameters()))


def test_negative_step_sizes_are_refused():
    with pytest.raises(ValueError, match="inclusion=-1"):
        param_groups(make_model(), inclusion=-1)
