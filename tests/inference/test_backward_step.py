"""``backward_step`` beside what else torch users put around an optimiser's step."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

import fastlbbnn
from fastlbbnn.inference.optim import UPDATE_RULES, Adam, BackwardStep
from fastlbbnn.nn import MLP, LBBNNLinear, MixtureLinear, weights

X = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(7) % 3


def make_model() -> MLP:
    torch.manual_seed(0)
    return MLP(6, 5, 3, estimator="concrete")  # draws weights, whose KL can be sampled


def bound(model: nn.Module, seed: int = 3, **kwargs):
    torch.manual_seed(seed)
    return fastlbbnn.elbo(model, X, Y, n_data=70, likelihood="categorical", **kwargs)


def in_turn(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def assert_same_step(model: nn.Module, other: nn.Module) -> None:
    """One step of 1e-3 by kernels that round differently: 1e-4 of a step, where a gradient is tiny."""
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_bound_is_taken_as_it_is():
    model = make_model()
    other = copy.deepcopy(model)
    Adam(model.parameters()).backward_step(bound(model))
    Adam(other.parameters()).backward_step(bound(other).loss)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


@pytest.mark.parametrize(
    "loss,error,message",
    [
        (3.0, TypeError, "a float; expected what fastlbbnn.elbo returns"),
        (torch.tensor(1.0), ValueError, "carries no gradient"),
        (torch.ones(2, requires_grad=True), ValueError, r"has the shape \[2\]"),
    ],
)
def test_what_is_no_loss_is_refused(loss, error, message):
    with pytest.raises(error, match=message):
        Adam(make_model().parameters()).backward_step(loss)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_nothing(value):
    model = make_model()
    optimizer = Adam(model.parameters())
    optimizer.backward_step(bound(model))
    before, state = copy.deepcopy(list(model.parameters())), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="no parameter was changed"):
        optimizer.backward_step(bound(model).loss * value)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before))
    for i, old in state["state"].items():
        assert all(torch.equal(old[k], v) for k, v in optimizer.state_dict()["state"][i].items())


def test_a_scaled_loss_is_refused_with_what_to_do():
    model = make_model()
    optimizer, scaler = Adam(model.parameters()), torch.amp.GradScaler("cpu")
    before = copy.deepcopy(list(model.parameters()))
    with pytest.raises(RuntimeError, match=r"scaler.scale\(loss\).backward\(\)"):
        optimizer.backward_step(scaler.scale(bound(model).loss))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before))
    scaler.scale(bound(model).loss).backward()
    scaler.step(optimizer)
    scaler.update()
    other = make_model()
    in_turn(torch.optim.Adam(other.parameters()), bound(other).loss)
    # Gradients went through a factor of 65536, a power of two.
    assert_same_step(model, other)


def test_a_loss_that_is_weighed_by_a_number_is_taken():
    model = make_model()
    other = copy.deepcopy(model)
    Adam(model.parameters()).backward_step(0.5 * bound(model).loss)
    in_turn(torch.optim.Adam(other.parameters()), bound(other).loss * 0.5)
    assert_same_step(model, other)


def test_step_hooks_fire_once_with_gradients():
    model = make_model()
    optimizer, seen = Adam(model.parameters()), []
    optimizer.register_step_pre_hook(lambda o, a, k: seen.append(model[0].kappa.grad.abs().sum().item() > 0))
    optimizer.register_step_post_hook(lambda o, a, k: seen.append("after"))
    optimizer.backward_step(bound(model))
    assert seen == [True, "after"]
    handle = register_optimizer_step_post_hook(lambda o, a, k: seen.append("global"))
    try:
        second = make_model()
        Adam(second.parameters()).backward_step(bound(second))
    finally:
        handle.remove()
    assert seen[2:] == ["global"]


@pytest.mark.parametrize("kind", ["hook", "post"])
def test_hooks_of_parameters_see_gradients(kind):
    model, seen = make_model(), []
    other = copy.deepcopy(model)
    if kind == "hook":
        model[0].rho.register_hook(lambda g: seen.append(g.clone()))
    else:
        model[0].rho.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    Adam(model.parameters()).backward_step(bound(model))
    in_turn(torch.optim.Adam(other.parameters()), bound(other).loss)
    (gradient,) = seen
    assert relative(gradient, other[0].rho.grad) < 1e-6
    assert_same_step(model, other)


def test_schedulers_do_not_warn():
    model = make_model()
    optimizer = Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.backward_step(bound(model))
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)


def test_distributed_training_reduces_before_it_steps(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    try:
        model, plain = make_model(), make_model()
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = Adam(model.parameters())
        other = torch.optim.Adam(plain.parameters())
        for _ in range(3):
            optimizer.backward_step(bound(wrapped))
            in_turn(other, bound(plain).loss)
    finally:
        torch.distributed.destroy_process_group()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_layer_that_a_pass_uses_twice_takes_the_ordinary_way():
    torch.manual_seed(0)
    layer = LBBNNLinear(6, 6)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))
    other = copy.deepcopy(model)
    Adam(model.parameters()).backward_step(bound(model))
    in_turn(torch.optim.Adam(other.parameters()), bound(other).loss)
    assert_same_step(model, other)


class Checkpointed(nn.Module):
    """A network whose body is recomputed in the backward pass."""

    def __init__(self, layers: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = layers, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x.requires_grad_(), use_reentrant=self.reentrant)


@pytest.mark.parametrize("estimator", ["concrete", "local"])
@pytest.mark.parametrize("make", [MLP, "sequential"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_the_noise_and_the_gradient_of_the_kl(reentrant, make, estimator):
    torch.manual_seed(0)
    plain = MLP(6, 5, 3, estimator=estimator)
    if make == "sequential":
        plain = nn.Sequential(*plain)
    body = copy.deepcopy(plain)
    kept = bound(Checkpointed(body, reentrant))
    expected = bound(plain)
    assert torch.equal(kept.loss, expected.loss) or relative(kept.loss, expected.loss) < 1e-6
    kept.loss.backward()
    expected.loss.backward()
    for (name, a), (_, b) in zip(body.named_parameters(), plain.named_parameters()):
        # The KL's gradient may come from another kernel than the likelihood's: two sums in place of one.
        assert relative(a.grad, b.grad) < 1e-5, name


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_step_of_a_checkpointed_network(reentrant):
    plain = make_model()
    body = copy.deepcopy(plain)
    model = Checkpointed(body, reentrant)
    for _ in range(2):
        Adam(model.parameters()).backward_step(bound(model))
        in_turn(torch.optim.Adam(plain.parameters()), bound(plain).loss)
    for a, b in zip(body.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    "kwargs", [{"mode": "sampled"}, {"generator": torch.Generator()}, {"kl": "sampled"}]
)
def test_checkpointing_refuses_what_the_recomputation_would_not_know(reentrant, kwargs):
    # An estimator that has a KL of draws.
    model = Checkpointed(MLP(6, 5, 3, estimator="concrete"), reentrant)
    with pytest.raises(RuntimeError, match="inside the checkpointed function"):
        bound(model, **kwargs).loss.backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_mode_inside_the_checkpointed_function_is_kept(reentrant):
    class Sampled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with weights("sampled"):
                return self.inner(x)

    plain = nn.Sequential(LBBNNLinear(6, 5), nn.ReLU(), MixtureLinear(5, 3))
    body = copy.deepcopy(plain)
    torch.manual_seed(3)
    kept = Checkpointed(Sampled(body), reentrant)(X.clone())
    torch.manual_seed(3)
    expected = Sampled(plain)(X.clone())
    kept.square().sum().backward()
    expected.square().sum().backward()
    for a, b in zip(body.parameters(), plain.parameters()):
        if b.grad is not None and b.grad.any():
            assert relative(a.grad, b.grad) < 1e-6


def test_any_optimiser_of_torch_becomes_one_with_a_backward_step():
    class SGD(BackwardStep, torch.optim.SGD):
        pass

    UPDATE_RULES.register("sgd", SGD)
    try:
        model, other = make_model(), make_model()
        UPDATE_RULES.find("sgd")(model.parameters(), lr=1e-2).backward_step(bound(model))
        in_turn(torch.optim.SGD(other.parameters(), lr=1e-2), bound(other).loss)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    finally:
        UPDATE_RULES.remove("sgd")


def test_a_step_that_is_captured_in_a_cuda_graph_is_refused_before_anything_is_written(monkeypatch):
    """Its count stands on the host, where a replay does not reach it."""
    torch.manual_seed(0)
    layer = LBBNNLinear(6, 4)
    optimizer = Adam(layer.parameters())
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    optimizer._on_gpu = True
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"Make the optimiser with Adam\(\.\.\., capturable=True\)"):
        optimizer.backward_step(layer(torch.randn(3, 6)).square().sum())
    assert not optimizer.state
    assert all(torch.equal(p, before[name]) for name, p in layer.named_parameters())


def test_a_capturable_optimiser_takes_the_ordinary_way_whose_count_is_on_the_device(monkeypatch):
    """The same numbers; gradients are written, and torch's own step reads its count from a tensor."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    found = []
    for capturable in (False, True):
        torch.manual_seed(0)
        layer = LBBNNLinear(6, 4)
        optimizer = Adam(layer.parameters(), lr=0.1, capturable=capturable)
        optimizer._on_gpu = capturable  # what would be refused otherwise
        for _ in range(3):
            optimizer.backward_step(layer(torch.ones(3, 6)).square().sum())
        assert (layer.kappa.grad is not None) == capturable
        assert all(isinstance(state["step"], torch.Tensor) for state in optimizer.state.values())
        found.append([p.detach().clone() for p in layer.parameters()])
    for own, ordinary in zip(*found):
        torch.testing.assert_close(own, ordinary, rtol=1e-5, atol=1e-6)
