"""The bound of networks that do not work on the last axis alone."""

from __future__ import annotations

import copy

import pytest
import torch
from support.modules import CLASSES, NETWORKS, Steps, TimeFirst, make
from torch import nn
from torch.nn import functional as F

import fastlbbnn
from fastlbbnn import elbo, kl, set_likelihood
from fastlbbnn.nn import MLP, LBBNNLinear, weights

each_network = pytest.mark.parametrize("name", NETWORKS)
Y = torch.arange(12) % CLASSES


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@each_network
def test_several_draws_are_the_mean_of_single_ones(name):
    model, x = make(name)
    set_likelihood(model.train(), "categorical")
    by_hand = copy.deepcopy(model)
    bound = elbo(model, x, Y, n_data=100, samples=3, generator=generator())
    source = generator()
    losses = []
    for _ in range(3):
        with weights(generator=source):
            output = by_hand(x)
        losses.append(F.cross_entropy(output, Y, reduction="sum") + 0.12 * kl(by_hand))
    expected = torch.stack(losses).mean()
    assert bound.output.shape == (3, 12, CLASSES)
    assert (bound.output[0] != bound.output[1]).any()
    torch.testing.assert_close(bound.loss, expected, rtol=1e-5, atol=0.0)
    bound.loss.backward()
    expected.backward()
    for (label, p), q in zip(model.named_parameters(), by_hand.parameters()):
        assert p.grad is not None, label
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=label: f"{n}: {m}")


@each_network
def test_one_draw_is_one_call(name):
    model, x = make(name)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    bound = elbo(model, x, Y, n_data=12, likelihood="categorical")
    assert len(calls) == 1 and bound.output.shape == (12, CLASSES)


@pytest.mark.parametrize("name", ["convolution", "batch normalisation", "lstm"])
def test_several_draws_train_in_the_backward_pass_too(name):
    trained = []
    for own in (True, False):
        model, x = make(name)
        optimizer = (fastlbbnn.Adam if own else torch.optim.Adam)(fastlbbnn.param_groups(model, weights=1e-2))
        for step in range(3):
            loss = elbo(
                model, x, Y, n_data=12, samples=2, likelihood="categorical", generator=generator(step)
            ).loss
            if own:
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        trained.append(model)
    for (label, p), q in zip(trained[0].named_parameters(), trained[1].parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5, msg=lambda m, n=label: f"{n}: {m}")


def test_parameters_are_the_models_own_after_an_error():
    model, x = make("convolution")
    before = dict(model.named_parameters())
    with pytest.raises(ValueError, match="expected a last axis of 16"):
        elbo(model, x[0], Y[:1], n_data=12, samples=2, likelihood="categorical")
    with pytest.raises(ValueError, match=r"output \[12, 3\] and the target \[11\]"):
        elbo(model, x, Y[1:], n_data=12, samples=2, likelihood="categorical")
    assert all(p is before[name] for name, p in model.named_parameters())


def test_dependent_indicators_have_logits_of_their_own_in_every_draw():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Flatten(), LBBNNLinear(6, 3, inclusion="mvn"))
    x = torch.randn(12, 6)
    bound = elbo(model, x, Y, n_data=12, samples=3, likelihood="categorical", generator=generator())
    bound.loss.backward()
    assert torch.isfinite(bound.kl) and model[2].inclusion.xi.grad.abs().sum() > 0
    assert (bound.output[0] != bound.output[1]).any()


@pytest.mark.parametrize("steps", [4, CLASSES])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_class_for_each_step(steps, samples):
    torch.manual_seed(0)
    model = set_likelihood(Steps(), "categorical")
    x, y = torch.randn(5, steps, 6), torch.randint(CLASSES, (5, steps))
    bound = elbo(model, x, y, n_data=5, samples=samples, generator=generator())
    output = bound.output.view(samples, 5, steps, CLASSES)
    expected = output.log_softmax(-1).gather(-1, y.expand(samples, -1, -1).unsqueeze(-1)).sum() / samples
    torch.testing.assert_close(bound.log_likelihood, expected)


def test_targets_count_the_observations_where_time_comes_first():
    torch.manual_seed(0)
    model = set_likelihood(TimeFirst(), "categorical")
    x, y = torch.randn(7, 5, 6), torch.arange(5) % CLASSES
    for samples in (1, 2):
        bound = elbo(model, x, y, n_data=50, samples=samples)
        assert bound.batch == 5
        torch.testing.assert_close(bound.loss, 0.1 * bound.kl - bound.log_likelihood)


def test_arguments_by_position_and_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = LBBNNLinear(6, 3)

        def forward(self, a, b):
            return self.head(a + b)

    model = set_likelihood(Two(), "categorical").eval()
    a, b = torch.randn(12, 6), torch.randn(12, 6)
    expected = elbo(model, (a, b), Y, n_data=12)
    torch.testing.assert_close(elbo(model, {"b": b, "a": a}, Y, n_data=12).loss, expected.loss)
    with torch.no_grad():
        torch.testing.assert_close(expected.output, model(a, b))


def test_a_network_of_its_own_kind_needs_a_function_for_outputs_that_are_no_tensor():
    class Answer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = MLP(6, 3)

        def forward(self, x):
            return {"logits": self.net(x)}

    x = torch.randn(12, 6)
    with pytest.raises(TypeError, match="the model gives a dict; expected a tensor"):
        elbo(Answer(), x, Y, n_data=12, likelihood="categorical")

    def log_likelihood(answer, y):
        return answer["logits"].log_softmax(-1)[torch.arange(len(y)), y]

    for samples in (1, 2):
        bound = elbo(Answer(), x, Y, n_data=12, likelihood=log_likelihood, samples=samples)
        assert torch.isfinite(bound.loss)
