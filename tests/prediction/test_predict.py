"""Prediction modes and densities."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fastlbbnn import GaussianDispersion, density, predict, predict_interval, set_likelihood
from fastlbbnn.inference.families import Gaussian
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear, WeightMode
from fastlbbnn.prediction.predict import log_prob_draws, quantiles

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    # Relaxed gates, so that a relaxed draw is one network for all rows, too.
    how = {"estimator": "concrete"}
    model = nn.Sequential(LBBNNLinear(6, 8, **how), nn.ReLU(), nn.Dropout(0.5), LBBNNLinear(8, 3, **how))
    for layer in (model[0], model[3]):
        nn.init.normal_(layer.inclusion.omega)
    return set_likelihood(model, "categorical")


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


@pytest.mark.parametrize(
    ("likelihood", "transform"),
    [
        ("categorical", lambda o: o.softmax(-1)),
        ("bernoulli", torch.sigmoid),
        ("gaussian", lambda o: o),
        (Gaussian(0.3), lambda o: o),
        ("poisson", torch.exp),
    ],
)
def test_what_is_averaged_follows_the_likelihood(model, likelihood, transform):
    p = [
        predict(model, X, generator=torch.Generator().manual_seed(0), **how)
        for how in ({"likelihood": likelihood}, {"transform": transform})
    ]
    assert torch.equal(*p)


def test_no_observations_give_no_predictions(model):
    assert predict(model, X[:0]).shape == (0, 3)
    assert predict_interval(model, X[:0]).lower.shape == (0, 3)


@pytest.mark.parametrize("mode", ["median", "median-mean"])
def test_a_median_model_without_a_path_is_reported(mode):
    model = MLP(6, 4, 3, likelihood="categorical")
    nn.init.constant_(model[0].inclusion.omega, -1.0)
    with pytest.warns(UserWarning, match="threshold=0.268941 is the closest with a path") as caught:
        p = predict(model, X, mode=mode)
    assert caught[0].filename == __file__  # it points to this call
    torch.testing.assert_close(p, p[:1].expand(50, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(model, X, mode=mode, threshold=0.2)
        predict(model, X)  # draws have paths of their own


def test_networks_that_are_no_chain_are_not_looked_into(model):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = LBBNNLinear(6, 6)

        def forward(self, x):
            return x + self.inner(x)

    assert predict(set_likelihood(Residual(), "categorical"), X, mode="median").shape == (50, 6)


# --- log-probabilities and intervals -------------------------------------------------------------


def test_log_probabilities_are_those_of_the_same_draws(model):
    y = torch.arange(50) % 3
    g = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    p = predict(model, X, samples=6, average=False, generator=g())
    log_p = log_prob_draws(model, X, y, samples=6, batch_size=7, generator=g())
    torch.testing.assert_close(log_p, p[:, torch.arange(50), y].log(), rtol=1e-4, atol=1e-5)
    assert log_prob_draws(model, X, y, mode="mean").shape == (1, 50)
    with pytest.raises(ValueError, match="x has 50 observations and y 49"):
        log_prob_draws(model, X, y[1:])


def certain(*outputs: float) -> GaussianLinear:
    """A network that gives these numbers whatever the input, and hardly varies."""
    layer = GaussianLinear(1, len(outputs))
    with torch.no_grad():
        layer.kappa.zero_()
        layer.bias_kappa.copy_(torch.tensor(outputs))
        layer.rho.fill_(-20.0)
        layer.bias_rho.fill_(-20.0)
    return layer


def test_quantiles_are_those_of_numpy():
    values = torch.randn(37, 4, generator=torch.Generator().manual_seed(0))
    at = (0.0, 0.05, 0.5, 0.93, 1.0)
    got = torch.stack(quantiles(values, at)).numpy()
    np.testing.assert_allclose(got, np.quantile(values.numpy(), at, axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["sampled", "median"])
def test_credible_intervals_are_quantiles_of_the_draws(model, mode):
    g = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    i = predict_interval(model, X, level=0.8, mode=mode, samples=40, batch_size=7, generator=g())
    assert i.mean.shape == i.lower.shape == i.upper.shape == (50, 3)
    assert (i.lower <= i.upper).all() and (i.lower >= 0).all() and (i.upper <= 1).all()
    draws = predict(model, X, mode=mode, samples=40, average=False, generator=_after_one_seed(g()))
    expected = np.quantile(draws.numpy(), (0.1, 0.9), axis=0)
    np.testing.assert_allclose(torch.stack((i.lower, i.upper)).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(i.mean.numpy(), draws.mean(0).numpy(), rtol=1e-4, atol=1e-5)


def _after_one_seed(generator: torch.Generator) -> torch.Generator:
    torch.randint(0, 2**62, (), generator=generator)  # that of the responses
    return generator


def test_a_linear_models_credible_interval_is_normal():
    torch.manual_seed(0)
    layer = GaussianLinear(1, 1, bias=False)
    layer.kappa.data.fill_(2.0)
    layer.rho.data.fill_(math.log(math.expm1(0.5)))
    x = torch.tensor([[1.0], [-3.0]])
    draws = 20_000
    i = predict_interval(layer, x, level=0.9, likelihood="gaussian", samples=draws)
    sd = 0.5 * x.abs()
    # A quantile has the standard error sqrt(q (1 - q) / draws) / density there.
    error = 4.5 * sd * math.sqrt(0.05 * 0.95 / draws) / stats.norm.pdf(1.6449)
    assert ((i.upper - (2 * x + 1.6449 * sd)).abs() < error).all()
    assert ((i.lower - (2 * x - 1.6449 * sd)).abs() < error).all()


@pytest.mark.parametrize("mode", ["sampled", "mean"])
def test_response_intervals_include_the_noise(mode):
    n = 20_000
    x = torch.zeros(3, 1)
    noise = GaussianDispersion(n_values=8, prior=(1.0, 1.0), variance=0.25)  # a = 5
    for likelihood, distribution in (
        (Gaussian(0.25), stats.norm(1.0, 0.5)),
        (noise, stats.t(10, 1.0, 0.5)),
    ):
        i = predict_interval(
            certain(1.0), x, of="response", level=0.8, mode=mode, samples=50, responses=n,
            likelihood=likelihood, generator=torch.Generator().manual_seed(0),
        )
        high = distribution.ppf(0.9)
        error = 4.5 * math.sqrt(0.1 * 0.9 / n) / distribution.pdf(high)
        assert (i.upper - high).abs().max() < error
        assert (i.lower - (2.0 - high)).abs().max() < error
        torch.testing.assert_close(i.mean, torch.ones(3, 1), rtol=0.0, atol=1e-5)
        assert i.upper.unique().numel() == 3  # noise of their own


def test_intervals_of_counts():
    i = predict_interval(
        certain(math.log(4.0)), torch.zeros(2, 1), of="response", level=0.9, likelihood="poisson",
        samples=100, responses=20_000, generator=torch.Generator().manual_seed(0),
    )
    # P(y <= 0) = 0.018 and P(y <= 1) = 0.092: the 5 % quantile is 1. P(y <= 7) = 0.949, P(y <= 8) = 0.979: 7
    # or 8, as the share at 7 is within a standard error of 0.95.
    assert i.lower.tolist() == [[1.0], [1.0]]
    assert ((i.upper >= 7.0) & (i.upper <= 8.0)).all()
    torch.testing.assert_close(i.mean, torch.full((2, 1), 4.0), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 1.0}, "level=1.0"),
        ({"of": "y"}, "of='y'"),
        ({"mode": "mean"}, "makes no draws"),
        ({"of": "response"}, "Categorical responses are classes"),
        ({"of": "response", "likelihood": "bernoulli"}, "Bernoulli responses are classes"),
        ({"responses": 0}, "responses=0"),
        ({"likelihood": "normal"}, "likelihood='normal'"),
    ],
)
def test_bad_intervals_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        predict_interval(model, X, **arguments)


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
