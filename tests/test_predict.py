"""Prediction modes and densities."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastlbbnn import density, predict
from fastlbbnn.nn import GaussianLinear, LBBNNLinear, WeightMode

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(LBBNNLinear(6, 8), nn.ReLU(), nn.Dropout(0.5), LBBNNLinear(8, 3))
    for layer in (model[0], model[3]):
        nn.init.normal_(layer.inclusion.omega)
    return model


@pytest.mark.parametrize("mode", list(WeightMode))
def test_predictions_are_probabilities(model, mode):
    p = predict(model, X, mode=mode, samples=4)
    assert p.shape == (50, 3)
    torch.testing.assert_close(p.sum(-1), torch.ones(50))
    assert not p.requires_grad


@pytest.mark.parametrize("mode", list(WeightMode))
def test_batches_see_the_same_draws(model, mode):
    results = [
        predict(model, X, mode=mode, samples=4, batch_size=b, generator=torch.Generator().manual_seed(1))
        for b in (50, 7)
    ]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_averaging_is_over_probabilities(model):
    g = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    all_draws = predict(model, X, samples=6, average=False, generator=g())
    assert all_draws.shape == (6, 50, 3)
    torch.testing.assert_close(all_draws.mean(0), predict(model, X, samples=6, generator=g()))


def test_a_transform_of_ones_own(model):
    logits = predict(model, X, mode="mean", transform=lambda o: o)
    torch.testing.assert_close(logits.softmax(-1), predict(model, X, mode="mean"))


@pytest.mark.parametrize("training", [True, False])
def test_the_training_flag_is_left_as_it_was(model, training):
    model.train(training)
    predict(model, X)
    assert model.training is training
    assert model[2].training is training


def test_densities(model):
    layers = (model[0], model[3])
    total = sum(m.kappa.numel() for m in layers)
    kept = sum(int((m.omega > 0).sum()) for m in layers)
    expected = sum(float(torch.sigmoid(m.omega).detach().sum()) for m in layers) / total
    assert density(model, "median") == density(model, "median-mean") == pytest.approx(kept / total)
    assert density(model, "sampled") == pytest.approx(expected, rel=1e-6)
    assert density(model, "mean") == 1.0
    assert density(GaussianLinear(3, 4), "median") == 1.0


def test_several_draws_use_what_is_in_any_of_them(model):
    alpha = torch.cat([m.inclusion_probabilities().flatten() for m in (model[0], model[3])])
    for r in (2, 10):
        expected = (1 - (1 - alpha.double()) ** r).mean().item()
        assert density(model, "sampled", samples=r) == pytest.approx(expected, rel=1e-6)
    # As counted, 2,000 times ten draws: within four standard deviations of that mean.
    g = torch.Generator().manual_seed(0)
    drawn = torch.rand(2000, 10, alpha.numel(), generator=g) < alpha
    used = 1 - (1 - alpha) ** 10
    deviation = (used * (1 - used)).sum().sqrt().item() / (alpha.numel() * 2000**0.5)
    counted = drawn.any(1).float().mean().item()
    assert density(model, "sampled", samples=10) == pytest.approx(counted, abs=4 * deviation)


def test_draws_matter_for_no_other_density(model):
    for mode in ("median", "median-mean", "mean"):
        assert density(model, mode, samples=10) == density(model, mode)
    assert density(GaussianLinear(3, 4), "sampled", samples=5) == 1.0


def test_many_draws_of_rare_weights_are_counted():
    layer = LBBNNLinear(100, 10)
    nn.init.constant_(layer.inclusion.omega, -30.0)  # alpha = 9.4e-14, below what 1 - alpha can show
    alpha = torch.sigmoid(torch.tensor(-30.0, dtype=torch.float64)).item()
    assert density(layer, "sampled", samples=7) == pytest.approx(7 * alpha, rel=1e-5)


def test_block_densities_count_weights():
    layer = LBBNNLinear(5, 4, block=(3, 4))
    layer.inclusion.omega.data = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert layer.density() == pytest.approx((3 * 4 + 1 * 1) / 20)


@pytest.mark.parametrize("arguments", [{"samples": 0}, {"batch_size": 0}, {"mode": "best"}])
def test_bad_arguments_are_refused(model, arguments):
    with pytest.raises(ValueError):
        predict(model, X, **arguments)
