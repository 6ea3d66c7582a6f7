"""The layers: drop-in for nn.Linear, modes, shapes, samples."""

from __future__ import annotations

import copy
import inspect
import math

import pytest
import torch
from torch import nn

import fastlbbnn
from fastlbbnn import reference
from fastlbbnn.nn import GaussianLinear, LBBNNLinear, WeightMode, expand_samples, weights


def test_positions_are_those_of_nn_linear():
    ours = list(inspect.signature(LBBNNLinear).parameters.values())
    theirs = [n for n in inspect.signature(nn.Linear).parameters if n not in ("device", "dtype")]
    positional = [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == theirs
    keyword = {p.name for p in ours if p.kind is p.KEYWORD_ONLY}
    own = {"block", "estimator", "prior", "temperature", "inclusion", "inclusion_options"}
    assert keyword == own | {"device", "dtype"}


@pytest.mark.parametrize("layer", [LBBNNLinear, GaussianLinear])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_outputs_have_the_shape_of_nn_linear(layer, shape, estimator):
    module = layer(6, 5, estimator=estimator)
    x = torch.randn(shape)
    for training in (True, False):
        y = module.train(training)(x)
        assert isinstance(y, torch.Tensor)
        assert y.shape == (*shape[:-1], 5)


def test_train_samples_and_eval_is_the_posterior_mean():
    layer = LBBNNLinear(6, 5)
    x = torch.randn(4, 6)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    alpha = torch.sigmoid(layer.omega)
    expected = nn.functional.linear(x, alpha * layer.kappa, layer.bias_kappa)
    assert torch.equal(layer(x), expected)
    with weights("sampled"):
        assert not torch.equal(layer(x), layer(x))
    layer.train()
    with weights("mean"):
        assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("block", [(1, 1), (2, 3)])
def test_median_modes_use_the_weights_above_one_half(block):
    layer = LBBNNLinear(6, 5, block=block)
    nn.init.normal_(layer.inclusion.omega)
    nn.init.constant_(layer.rho, -200.0)
    nn.init.constant_(layer.bias_rho, -200.0)
    x = torch.randn(4, 6)
    mask = reference.expand_blocks((layer.omega > 0).float(), 5, 6, block)
    expected = nn.functional.linear(x, mask * layer.kappa, layer.bias_kappa)
    for mode in ("median", "median-mean"):
        with weights(mode):
            # Without posterior spread the draw is the mean; a sum of six products rounds six times.
            torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)
    with weights("median-mean", threshold=0.9):
        high = reference.expand_blocks((torch.sigmoid(layer.omega) > 0.9).float(), 5, 6, block)
        assert torch.equal(layer(x), nn.functional.linear(x, high * layer.kappa, layer.bias_kappa))


@pytest.mark.parametrize("mode", ["relaxed", "sampled", "median"])
def test_sampled_modes_are_reproducible_through_a_generator(mode):
    layer = LBBNNLinear(6, 5)
    x = torch.randn(4, 6)
    outputs = []
    for _ in range(2):
        with weights(mode, generator=torch.Generator().manual_seed(3)):
            outputs.append(layer(x))
    assert torch.equal(*outputs)


def test_the_default_generator_is_torchs():
    layer, x = LBBNNLinear(6, 5), torch.randn(4, 6)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)


@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_samples_share_one_call(estimator):
    first, second = (LBBNNLinear(a, b, estimator=estimator) for a, b in ((6, 5), (5, 3)))
    model = nn.Sequential(first, nn.ReLU(), second)
    x = torch.randn(4, 6)
    with weights(samples=7):
        y = model(expand_samples(x, 7))
    assert y.shape == (7, 4, 3)
    assert (y[0] != y[1]).any()


def test_samples_of_a_shared_input_are_those_of_a_repeated_one():
    layer = LBBNNLinear(6, 5)
    x = torch.randn(4, 6)
    results = []
    for inputs in (expand_samples(x, 3), x.repeat(3, 1, 1)):
        with weights("sampled", samples=3, generator=torch.Generator().manual_seed(0)):
            results.append(layer(inputs))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)  # one product of six terms, or three


def test_modes_nest_and_are_put_back():
    layer, x = LBBNNLinear(6, 5).eval(), torch.randn(4, 6)
    mean = layer(x)
    with weights("sampled", samples=2):
        with weights("mean"):
            assert torch.equal(layer(expand_samples(x, 2)), mean.expand(2, 4, 5))
        assert layer(expand_samples(x, 2)).shape == (2, 4, 5)
    with pytest.raises(ZeroDivisionError), weights("sampled"):
        _ = 1 / 0
    assert torch.equal(layer(x), mean)


@pytest.mark.parametrize("temperature", [0.001])
def test_concrete_at_a_small_temperature_and_local_have_the_same_moments(temperature):
    """Both estimate the same activation: its mean and variance are known in closed form."""
    draws = 20_000
    torch.manual_seed(0)
    layers = {
        e: LBBNNLinear(12, 3, estimator=e, temperature=temperature) for e in ("concrete", "local")
    }
    for layer in layers.values():
        parameters = dict(layers["concrete"].named_parameters())
        layer.load_state_dict(parameters, strict=False)
        nn.init.constant_(layer.rho, -1.0)
    x = torch.randn(2, 12)
    alpha, tau = torch.sigmoid(layers["local"].omega), reference.softplus(layers["local"].rho)
    kappa, bias_tau = layers["local"].kappa, reference.softplus(layers["local"].bias_rho)
    mean = x @ (alpha * kappa).T + layers["local"].bias_kappa
    var = x**2 @ (alpha * (tau**2 + (1 - alpha) * kappa**2)).T + bias_tau**2
    for estimator, layer in layers.items():
        with torch.no_grad(), weights(samples=draws, generator=torch.Generator().manual_seed(1)):
            y = layer(expand_samples(x, draws)).double()
        # Gates that are not yet 0 or 1 (a share of 10 delta at most) bias the moments by less than delta.
        slack = 10 * temperature * (estimator == "concrete")
        assert ((y.mean(0) - mean).abs() < 4 * (var / draws).sqrt() + slack).all(), estimator
        # Var(s^2) <= (kurtosis - 1) var^2 / n; a mixture of this many terms has kurtosis below 6.
        assert ((y.var(0) - var).abs() < 4 * var * math.sqrt(5 / draws) + slack).all(), estimator


def test_state_round_trips_and_copies(tmp_path):
    layer = LBBNNLinear(600, 50, prior=fastlbbnn.EmpiricalBayesPrior())
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = LBBNNLinear(600, 50, prior=fastlbbnn.EmpiricalBayesPrior())
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    x = torch.randn(4, 600)
    assert torch.equal(layer.eval()(x), other.eval()(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    # Staggered storage must not bloat a file: three matrices and change.
    assert (tmp_path / "layer.pt").stat().st_size < 3 * 600 * 50 * 4 * 1.1 + 20_000


def test_float64_and_bfloat16_take_the_reference():
    x = torch.randn(4, 6, dtype=torch.float64)
    layer = LBBNNLinear(6, 5, dtype=torch.float64)
    assert layer(x).dtype == torch.float64
    assert layer.kl().dtype == torch.float64
    assert LBBNNLinear(6, 5, dtype=torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


def test_a_layer_owns_its_prior():
    prior = fastlbbnn.EmpiricalBayesPrior()
    a, b = LBBNNLinear(3, 2, prior=prior), LBBNNLinear(3, 2, prior=prior)
    assert a.prior is not b.prior
    assert a.prior.raw_psi is not prior.raw_psi


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LBBNNLinear(0, 5), ValueError, "in_features=0"),
        (lambda: LBBNNLinear(5, -1), ValueError, "out_features=-1"),
        (lambda: LBBNNLinear(5.0, 1), TypeError, "in_features=5.0 is a float"),
        (lambda: LBBNNLinear(5, 5, block=(0, 1)), ValueError, r"block\[0\]=0"),
        (lambda: LBBNNLinear(5, 5, block=3), TypeError, "block=3"),
        (lambda: LBBNNLinear(5, 5, estimator="lrt"), ValueError, "estimator='lrt'"),
        (lambda: LBBNNLinear(5, 5, estimator="local", block=(2, 2)), ValueError, "share an indicator"),
        (lambda: LBBNNLinear(5, 5, temperature=0.0), ValueError, "temperature=0.0"),
        (lambda: LBBNNLinear(5, 5, temperature=-1.0), ValueError, "temperature=-1.0"),
        (lambda: LBBNNLinear(5, 5, temperature=float("nan")), ValueError, "temperature=nan"),
        (lambda: LBBNNLinear(5, 5, prior=3), TypeError, "prior is a int"),
        (lambda: LBBNNLinear(5, 5, prior="flat"), ValueError, "there is no prior 'flat'; expected one of 'fixed'"),
        (lambda: LBBNNLinear(5, 5)(torch.randn(2, 4)), ValueError, r"x is \[2, 4\]"),
        (lambda: LBBNNLinear(5, 5)(torch.randn(2, 5).double()), TypeError, "x is torch.float64"),
        (lambda: LBBNNLinear(5, 5)(torch.zeros(2, 5, device="meta")), ValueError, "x is on meta"),
        (lambda: weights("median_mean"), ValueError, "mode='median_mean'"),
        (lambda: weights(samples=0), ValueError, "samples=0"),
        (lambda: weights(threshold=1.5), ValueError, "threshold=1.5"),
        (lambda: weights(kl="exact"), ValueError, "kl='exact'"),
        (lambda: WeightMode("x"), ValueError, "x"),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_missing_sample_axis_is_explained():
    layer = LBBNNLinear(5, 4)
    with weights(samples=3), pytest.raises(ValueError, match="expand_samples"):
        layer(torch.randn(2, 5))


@pytest.mark.parametrize("name", ["kappa", "rho", "omega", "bias_kappa", "bias_rho"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_parameters_that_are_not_finite_are_found(backend, name, bad, estimator):
    layer = LBBNNLinear(7, 4, estimator=estimator)
    target = layer.inclusion.omega if name == "omega" else getattr(layer, name)
    with torch.no_grad():
        target[(2,) * target.dim()] = bad
    where = r"\[2, 2\]" if target.dim() == 2 else r"\[2\]"
    with fastlbbnn.use_backend(backend):
        for call in (lambda: layer(torch.randn(3, 7)), layer.kl):
            with pytest.raises(ValueError, match=f"{name} holds 1 values that are not finite.*{where}"):
                call()


def test_the_estimator_follows_from_the_blocks():
    assert LBBNNLinear(4, 3).estimator == "local"
    assert LBBNNLinear(4, 3, block=(2, 2)).estimator == "concrete"
    assert LBBNNLinear(4, 3, estimator="concrete").estimator == "concrete"


def test_the_objective_of_a_median_model_moves_only_what_is_kept():
    layer = LBBNNLinear(5, 4)
    torch.nn.init.normal_(layer.inclusion.omega, generator=torch.Generator().manual_seed(1))
    kept = layer.inclusion.chosen()
    bound = fastlbbnn.elbo(
        layer, torch.randn(8, 5), torch.randn(8, 4), n_data=8, likelihood="gaussian", mode="median"
    )
    bound.loss.backward()
    for gradient in (layer.kappa.grad, layer.rho.grad):
        # An indicator that is out has the probability sigmoid(-60) = 9e-27.
        assert (gradient[kept].abs() > 1e-6).all() and (gradient[~kept].abs() < 1e-20).all()
    # Rows that are alike get noise of their own: activations were drawn, not weights.
    assert not torch.equal(
        *fastlbbnn.elbo(
            layer, torch.ones(2, 5), torch.zeros(2, 4), n_data=2, likelihood="gaussian", mode="median"
        ).output
    )
