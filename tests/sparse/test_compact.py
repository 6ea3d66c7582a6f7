"""A selected network gives the outputs of the network that it was selected from."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from support.selected import assert_equal_to_rounding, inputs, layers_of, outputs, trained
from torch import nn

import fastlbbnn
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear
from fastlbbnn.sparse import SparseModel
from fastlbbnn.sparse.check import check_network
from fastlbbnn.sparse.engines import native as _library

BATCHES = (1, 2, 7, 8, 9, 16, 17, 41, 100)

NETWORKS = {
    "one indicator per weight": lambda: trained(50, 41, 33, 7),
    "one layer": lambda: trained(40, 9, density=0.1),
    "wide": lambda: trained(784, 100, 20, 10, density=0.08),
    "very sparse": lambda: trained(60, 50, 40, 30, 5, density=0.04, seed=3),
    "dense": lambda: trained(30, 20, 10, density=1.0),
    "blocks": lambda: trained(64, 48, 32, 16, block=(16, 16), density=0.5),
    "cut blocks": lambda: trained(50, 37, 21, 10, block=(4, 8), density=0.2),
    "long blocks": lambda: trained(30, 26, 14, 3, block=(1, 8), density=0.3),
    "tall blocks": lambda: trained(30, 26, 14, 3, block=(7, 1), density=0.3),
    "no biases": lambda: trained(40, 30, 5, bias=False),
    "no indicators": lambda: trained(20, 15, 4, layer=GaussianLinear),
}


def formats_of(small: SparseModel) -> list[str | None]:
    """None (by plan), and every format that all layers can have."""
    names = [small.candidates(i) for i in range(len(small.network.layers))]
    return [None, *(f for f in ("dense", "csr", "bsr") if all(f in n for n in names))]


@pytest.mark.filterwarnings("ignore:no path")
@pytest.mark.parametrize("name", NETWORKS)
def test_means_and_samples_equal_those_of_the_network(name):
    model = NETWORKS[name]()
    small = fastlbbnn.select(model)
    if name == "blocks":
        assert small.network.layers[0].block == (16, 16)
    features = small.in_features
    for formats in formats_of(small):
        small.use(formats)
        for batch in BATCHES:
            x = inputs(batch, features)
            assert_equal_to_rounding(small(x), outputs(model, x, "median-mean")[0])
            drawn = small.predict(
                x, samples=3, transform=lambda y: y, average=False,
                generator=torch.Generator().manual_seed(2),
            )
            assert_equal_to_rounding(drawn, outputs(model, x, "median", samples=3))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9])
def test_weights_above_the_threshold_are_kept(threshold):
    model = trained(20, 15, 4)
    for layer in layers_of(model):
        nn.init.normal_(layer.omega, std=4.0)
    small = fastlbbnn.select(model, threshold)
    x = inputs(30, 20)
    expected = fastlbbnn.predict(model, x, mode="median-mean", threshold=threshold, likelihood="categorical")
    torch.testing.assert_close(small.predict(x, likelihood="categorical"), expected, rtol=1e-5, atol=1e-6)
    if threshold == 0.0:
        assert small.nnz == 20 * 15 + 15 * 4


def test_a_weight_at_the_threshold_is_out():
    layer = LBBNNLinear(2, 1)
    layer.inclusion.omega.data = torch.tensor([[0.0, 0.1]])
    assert fastlbbnn.select(layer).network.inputs.tolist() == [1]


def connected(*masks: list[list[int]]) -> MLP:
    """A network with exactly these connections, [outputs][inputs] per layer."""
    grids = [torch.tensor(mask, dtype=torch.bool) for mask in masks]
    sizes = [grids[0].shape[1], *(g.shape[0] for g in grids)]
    model = trained(*sizes)
    for layer, grid in zip(layers_of(model), grids):
        layer.omega.data = torch.where(grid, 2.0, -2.0)
        layer.bias_kappa.data.abs_()  # so that a constant unit is not zero after the relu
    return model


def assert_still_equal(model: MLP, small: SparseModel) -> None:
    x = inputs(20, small.in_features)
    assert_equal_to_rounding(small(x), outputs(model, x, "median-mean")[0])
    drawn = small.predict(
        x, samples=4, transform=lambda y: y, average=False,
        generator=torch.Generator().manual_seed(2),
    )
    assert_equal_to_rounding(drawn, outputs(model, x, "median", samples=4))


def test_units_that_reach_no_output_and_unused_inputs_are_removed():
    # Unit 1 has no way out; input 2 feeds only unit 1.
    model = connected([[1, 1, 0], [0, 0, 1], [1, 0, 0]], [[1, 0, 1], [1, 0, 0]])
    small = fastlbbnn.select(model)
    assert small.network.inputs.tolist() == [0, 1]
    assert small.network.layers[0].row_index.tolist() == [0, 2]
    assert small.network.constants == []
    assert_still_equal(model, small)


def test_removal_goes_on_through_the_layers():
    # The last hidden unit 1 is unused, so is unit 1 before it, so is input 1.
    model = connected([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[1, 0]])
    small = fastlbbnn.select(model)
    assert [layer.rows for layer in small.network.layers] == [1, 1, 1]
    assert small.network.inputs.tolist() == [0]
    assert_still_equal(model, small)


def test_units_without_inputs_are_folded_into_biases_of_means_and_draws():
    # Units 1 and 2 take nothing; unit 1 of the next layer takes only those: constant as well.
    model = connected(
        [[1, 1], [0, 0], [0, 0]], [[1, 1, 0], [0, 1, 1], [1, 0, 0]], [[1, 1, 1], [0, 1, 0]]
    )
    small = fastlbbnn.select(model)
    assert [layer.rows for layer in small.network.layers] == [1, 2, 2]
    assert [c.rows for c in small.network.constants] == [3, 3, 2]
    assert_still_equal(model, small)
    # An output that only constants feed varies from draw to draw and not with the input.
    drawn = small.sample(inputs(5, 2), samples=6)
    assert (drawn[:, :, 1] == drawn[:, :1, 1]).all()
    assert drawn[:, 0, 1].unique().numel() == 6


def test_folding_is_as_exact_as_float32_allows():
    model = connected([[1], [0], [0], [0]], [[1, 1, 1, 1]])
    small = fastlbbnn.select(model, posterior=False)
    first, second = layers_of(model)
    folded = second.bias_kappa.double() + (
        second.kappa.double() * torch.relu(first.bias_kappa.double())
    )[:, 1:].sum(1)
    assert small.network.constants == []
    np.testing.assert_array_equal(
        small.network.layers[1].bias_mean, folded.detach().float().numpy()
    )


@pytest.mark.filterwarnings("ignore:no path")  # from predict, which says it as well
def test_a_network_without_a_path_is_a_constant_and_says_so():
    model = connected([[0, 0], [0, 0]], [[1, 1], [0, 0]])
    with pytest.warns(UserWarning, match="gives the same output for every input"):
        small = fastlbbnn.select(model)
    assert small.is_constant
    assert (small.network.inputs.size, small.nnz) == (0, 0)
    assert_still_equal(model, small)
    assert (small(inputs(9, 2)) == small(inputs(1, 2))).all()


@pytest.mark.filterwarnings("ignore:no path")
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_dead_layer_makes_a_constant(dead):
    masks = [[[1, 1, 1]] * 3, [[1, 1, 1]] * 3, [[1, 1, 1]] * 2]
    masks[dead] = [[0, 0, 0]] * len(masks[dead])
    model = connected(*masks)
    with pytest.warns(UserWarning, match="no path"):
        small = fastlbbnn.select(model)
    assert small.is_constant
    assert small.out_features == 2
    assert_still_equal(model, small)
    dense = small.to_dense()
    assert_equal_to_rounding(dense(inputs(4, 3)), small(inputs(4, 3)))


def test_an_all_dense_network_keeps_everything_without_a_warning():
    model = trained(12, 9, 4, density=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = fastlbbnn.select(model)
    assert small.nnz == 12 * 9 + 9 * 4
    assert not small.is_constant


def test_blocks_stay_aligned_when_units_are_removed():
    model = trained(64, 64, 64, 8, block=(8, 8), density=0.25, seed=6)
    small = fastlbbnn.select(model)
    assert not small.is_constant
    layers = small.network.layers
    assert layers[0].rows < 64
    for layer in layers:
        assert layer.blocks.values.shape[1:] == (8, 8)
        assert layer.nnz == layer.blocks.values.size
    assert_still_equal(model, small)


def test_flatten_dropout_and_nesting_are_passed_over():
    inner = trained(12, 9, 4)
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Identity(), inner[0]), nn.ReLU(),
                          nn.Dropout(0.5), inner[2])
    x = inputs(6, 12)
    assert_equal_to_rounding(fastlbbnn.select(model)(x), outputs(inner, x, "median-mean")[0])


def test_a_sequence_of_layers_draws_as_an_mlp_does():
    mlp = trained(12, 9, 4)
    chain = nn.Sequential(*mlp)
    x = inputs(6, 12)
    small = fastlbbnn.select(chain)
    g = torch.Generator().manual_seed(2)
    drawn = small.predict(x, samples=3, transform=lambda y: y, average=False, generator=g)
    assert_equal_to_rounding(drawn, outputs(chain, x, "median", samples=3))


def test_layers_without_relu_and_a_relu_at_the_end():
    parts = trained(12, 9, 7, 4)
    model = nn.Sequential(parts[0], parts[2], nn.ReLU(), parts[4], nn.ReLU())
    x = inputs(10, 12)
    small = fastlbbnn.select(model)
    assert [layer.relu for layer in small.network.layers] == [False, True, True]
    for formats in formats_of(small):
        assert_equal_to_rounding(small.use(formats)(x), outputs(model, x, "median-mean")[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Sequential(LBBNNLinear(3, 2), nn.Tanh()), "cannot use Tanh"),
        (lambda: nn.Sequential(nn.Linear(3, 2), LBBNNLinear(2, 2)), "cannot use Linear"),
        (lambda: nn.Sequential(nn.ReLU(), LBBNNLinear(2, 2)), "cannot use ReLU"),
        (lambda: nn.Sequential(LBBNNLinear(2, 2), nn.Flatten()), "cannot use Flatten"),
        (lambda: nn.Sequential(nn.Flatten(0), LBBNNLinear(2, 2)), "cannot use Flatten"),
        (lambda: nn.Sequential(), "has no BayesianLinear"),
    ],
)
def test_other_networks_are_refused(model, message):
    with pytest.raises(TypeError, match=message):
        fastlbbnn.select(model())


def test_bad_thresholds_parameters_and_shapes_are_refused():
    model = trained(4, 3, 2)
    with pytest.raises(ValueError, match="threshold=1"):
        fastlbbnn.select(model, 1.0)
    with pytest.raises(TypeError, match="threshold is a str"):
        fastlbbnn.select(model, "0.5")
    with pytest.raises(ValueError, match="takes 5 inputs"):
        fastlbbnn.select(nn.Sequential(LBBNNLinear(3, 2), LBBNNLinear(5, 1)))
    model[0].kappa.data[1, 2] = float("nan")
    with pytest.raises(ValueError, match="kappa holds 1 values"):
        fastlbbnn.select(model)


def test_selected_networks_pass_their_own_check():
    for make in NETWORKS.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_network(fastlbbnn.select(make()).network)


def test_the_library_is_in_use():
    """The rest of these tests would pass without it, through torch alone."""
    assert _library.unavailable() is None


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian", "poisson"])
def test_predictions_follow_the_likelihood(likelihood):
    model = trained(12, 9, 4)
    x = inputs(5, 12)
    expected = fastlbbnn.predict(model, x, mode="median-mean", likelihood=likelihood)
    assert_equal_to_rounding(fastlbbnn.select(model).predict(x, likelihood=likelihood), expected)
