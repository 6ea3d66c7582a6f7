"""A selected model trains on: as a module in a loop of one's own, or by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.selected import assert_equal_to_rounding, inputs, trained

import fastlbbnn
from fastlbbnn.data import Preparation
from fastlbbnn.nn import FixedMLP, weights
from fastlbbnn.sparse import SparseModel
from fastlbbnn.sparse.check import check_network


def make_small(*sizes: int, posterior: bool = True, **kwargs) -> SparseModel:
    model = trained(*sizes, **kwargs)
    return fastlbbnn.select(model, likelihood="categorical", posterior=posterior)


def make_rows(count: int, features: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = inputs(count, features)
    return x, x[:, :classes].argmax(1)


@pytest.mark.parametrize("block", [(1, 1), (4, 4)])
@pytest.mark.parametrize("density", [0.4, 0.1])
def test_the_module_is_the_model(block, density):
    """Means and scales, of all raw features, and back without a change beyond the rounding of softplus."""
    small = make_small(50, 41, 33, 7, block=block, density=density)
    module = small.trainable()
    x = inputs(9, 50)
    with torch.no_grad(), weights("mean"):
        assert_equal_to_rounding(module(x), small.forward(x))
    again = small.with_posterior_of(module)
    check_network(again.network)
    assert_equal_to_rounding(again(x), small(x))
    for one, two in zip(small.network.layers, again.network.layers):
        np.testing.assert_allclose(two.scale, one.scale, rtol=1e-5)
        np.testing.assert_allclose(two.bias_scale, one.bias_scale, rtol=1e-5)
        if one.blocks is not None:
            np.testing.assert_allclose(two.blocks.scales, one.blocks.scales, rtol=1e-5)


@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
def test_training_on_improves_and_can_be_saved(estimator, tmp_path):
    small = make_small(20, 30, 4)
    x, y = make_rows(400, 20, 4)
    better = small.train_on(x, y, epochs=60, step_size=1e-2, estimator=estimator, kl_weight=0.1)
    right = [(model(x).argmax(1) == y).float().mean().item() for model in (small, better)]
    assert right[1] > right[0] + 0.2
    for one, two in zip(small.network.layers, better.network.layers):
        assert np.array_equal(one.columns, two.columns) and np.array_equal(one.row_offsets, two.row_offsets)
    better.save(tmp_path / "better.safetensors")
    loaded = SparseModel.load(tmp_path / "better.safetensors")
    assert torch.equal(loaded(x), better(x))
    assert torch.equal(loaded.sample(x, seed=3), better.sample(x, seed=3))
    assert loaded.provenance["trained_on"][0]["rows"] == 400
    twice = loaded.train_on(x, y, epochs=1)
    assert [step["epochs"] for step in twice.provenance["trained_on"]] == [60, 1]


def test_the_same_seed_gives_the_same_bits():
    small = make_small(20, 30, 4)
    x, y = make_rows(100, 20, 4)
    one, two, other = (small.train_on(x, y, epochs=2, batch=16, seed=s) for s in (1, 1, 2))
    assert torch.equal(one(x), two(x)) and not torch.equal(one(x), other(x))


def test_numpy_rows_and_targets_do_as_well():
    small = make_small(20, 30, 4)
    x, y = make_rows(100, 20, 4)
    by_numpy = small.train_on(x.numpy(), y.numpy(), epochs=1)
    assert torch.equal(by_numpy(x), small.train_on(x, y, epochs=1)(x))


def test_a_loop_of_ones_own():
    small = make_small(20, 30, 4)
    module = small.trainable()
    assert isinstance(module, FixedMLP) and module.likelihood is not None
    x, y = make_rows(200, 20, 4)
    optimizer = fastlbbnn.Adam(module.parameters(), lr=1e-2)
    before = fastlbbnn.elbo(module, x, y, n_data=200).log_likelihood.item()
    for _ in range(60):
        optimizer.backward_step(fastlbbnn.elbo(module, x, y, n_data=200).loss)
    assert fastlbbnn.elbo(module, x, y, n_data=200).log_likelihood.item() > before
    torch.testing.assert_close(small.with_posterior_of(module)(x), module.eval()(x).detach(), rtol=1e-4, atol=1e-4)


def test_numbers_are_in_the_units_of_the_data():
    x = inputs(200, 6).double().numpy() * 3.0 + 1.0
    target = 100.0 + 40.0 * x[:, :1]
    preparation = Preparation.as_is(6)
    preparation = Preparation(
        preparation.columns, type(preparation.target)(mean=(100.0,), scale=(40.0,))
    )
    small = fastlbbnn.select(
        trained(6, 20, 1, density=0.8), preparation=preparation, likelihood={"name": "gaussian", "variance": 0.25}
    )
    better = small.train_on(x, target, epochs=60, step_size=1e-2, kl_weight=0.1)
    errors = [float(np.abs(np.asarray(model(x)) - target).mean()) for model in (small, better)]
    assert errors[1] < 0.5 * errors[0]


def test_a_model_of_means_asks_for_scales():
    small = make_small(20, 30, 4, posterior=False)
    x, y = make_rows(100, 20, 4)
    with pytest.raises(ValueError, match="holds means alone"):
        small.train_on(x, y)
    better = small.train_on(x, y, epochs=2, estimator="means", scale=0.01)
    assert better.has_posterior


@pytest.mark.parametrize("change,message", [
    ({"epochs": 0}, "epochs=0"), ({"batch": 0}, "batch=0"), ({"estimator": "concrete"}, "estimator='concrete'"),
    ({"targets": torch.zeros(3, dtype=torch.long)}, "100 rows and 3 targets"),
])  # fmt: skip
def test_bad_arguments_are_explained(change, message):
    small = make_small(20, 30, 4)
    x, y = make_rows(100, 20, 4)
    arguments = {"targets": y, "epochs": 1, **change}
    with pytest.raises(ValueError, match=message):
        small.train_on(x, arguments.pop("targets"), **arguments)


@pytest.mark.filterwarnings("ignore:no path")
def test_a_constant_is_refused():
    model = trained(20, 30, 4)
    model[0].omega.data.fill_(-3.0)
    small = fastlbbnn.select(model, likelihood="categorical")
    with pytest.raises(ValueError, match="the model is a constant"):
        small.trainable()


def test_what_does_not_belong_to_the_model_is_refused():
    small, other = make_small(20, 30, 4), make_small(20, 30, 4, seed=5)
    with pytest.raises(ValueError, match="trainable\\(\\) made of it"):
        small.with_posterior_of(other.trainable())
    unknown = fastlbbnn.select(trained(20, 30, 4))
    with pytest.raises(ValueError, match="does not say what its outputs mean"):
        unknown.train_on(*make_rows(10, 20, 4))
