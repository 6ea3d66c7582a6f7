"""Kept weights, paths and thresholds that connect, against brute force over all paths."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from support.selected import layers_of
from torch import nn

import fastlbbnn
from fastlbbnn.nn import MLP, GaussianLinear, HorseshoeLinear, LBBNNLinear, NormalJeffreysLinear
from fastlbbnn.structure import paths as structure
from fastlbbnn.structure.paths import is_connected, kept_weights, layer_structure, structure_of
from fastlbbnn.structure.thresholds import bottleneck, connecting_threshold, resolve_threshold


def random_network(seed: int, *sizes: int, shift: float = 0.0, **kwargs) -> MLP:
    torch.manual_seed(seed)
    model = MLP(*sizes, **kwargs)
    for layer in model:
        if isinstance(layer, LBBNNLinear):
            nn.init.normal_(layer.inclusion.omega, mean=shift, std=1.5)
    return model


def with_probabilities(*grids: list[list[float]]) -> MLP:
    """A network with these inclusion probabilities, [outputs][inputs] per layer."""
    grids = [torch.tensor(g, dtype=torch.float64) for g in grids]
    model = MLP(grids[0].shape[1], *(g.shape[0] for g in grids), dtype=torch.float64)
    for layer, grid in zip(layers_of(model), grids):
        layer.inclusion.omega.data = torch.logit(grid)
    return model


def paths(model: nn.Module):
    """All paths as lists of (layer, output unit, input unit), and their inclusion probabilities."""
    layers = [m for m in model.modules() if isinstance(m, (LBBNNLinear, GaussianLinear))]
    alphas = [structure.inclusion_of_weights(layer) for layer in layers]
    units = [range(layers[0].in_features), *(range(layer.out_features) for layer in layers)]
    for path in itertools.product(*units):
        edges = [(i, path[i + 1], path[i]) for i in range(len(layers))]
        yield edges, [alphas[i][j, k].item() for i, j, k in edges]


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_active_weights_and_used_inputs_are_those_on_some_path(seed, threshold):
    model = random_network(seed, 5, 4, 3, 2)
    open_paths = [edges for edges, alpha in paths(model) if min(alpha) > threshold]
    active = {edge for edges in open_paths for edge in edges}
    got = structure_of(model, threshold)
    assert [layer.active for layer in got.layers] == [sum(e[0] == i for e in active) for i in range(3)]
    assert got.used_inputs.nonzero().flatten().tolist() == sorted({e[2] for e in active if e[0] == 0})
    assert got.reached_outputs.nonzero().flatten().tolist() == sorted({e[1] for e in active if e[0] == 2})
    assert got.is_connected is is_connected(model, threshold) is bool(open_paths)
    assert got.active == len(active) and got.active_density == len(active) / (20 + 12 + 6)
    assert got.density == pytest.approx(fastlbbnn.density(model, "median", threshold))
    for layer, row in zip(layers_of(model), got.layers):
        assert row.density == pytest.approx(layer.density(threshold=threshold))
        assert row.mean_inclusion == pytest.approx(layer.mean_inclusion())


@pytest.mark.parametrize("sizes", [(4, 3), (5, 4, 3, 2), (2, 3, 3, 3, 2)])
@pytest.mark.parametrize("seed", range(6))
def test_the_bottleneck_is_the_best_of_all_paths(seed, sizes):
    model = random_network(seed, *sizes, shift=-2.0)
    assert bottleneck(model) == max(min(alpha) for _, alpha in paths(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(6))
def test_the_connecting_threshold_is_the_largest_that_connects(seed, dtype):
    model = random_network(seed, 6, 5, 4, 2, shift=-3.0, dtype=dtype)
    best = bottleneck(model)
    found = connecting_threshold(model, 0.9)
    assert found < best and is_connected(model, found)
    above = torch.nextafter(torch.tensor(found, dtype=dtype), torch.ones((), dtype=dtype)).item()
    assert above == best and not is_connected(model, above)
    # Asked for one that connects already, it is that one.
    assert connecting_threshold(model, best / 2) == best / 2


@pytest.mark.parametrize("family", ["mvn", "low-rank"])
def test_random_logits_connect_by_their_marginal_probabilities(family):
    torch.manual_seed(0)
    model = MLP(6, 5, 4, 2, inclusion=family)
    for layer in layers_of(model):
        nn.init.normal_(layer.inclusion.xi, mean=-2.0)
    best = max(min(alpha) for _, alpha in paths(model))
    assert bottleneck(model) == best < 0.5
    found = connecting_threshold(model)
    assert found < best and is_connected(model, found) and not is_connected(model, best)


def test_every_output_is_found_by_its_own_best_path():
    model = with_probabilities([[0.9, 0.2], [0.4, 0.6]], [[0.3, 0.7], [0.1, 0.2]])
    # Output 0 through unit 1 and input 1: min(0.6, 0.7).
    assert bottleneck(model) == pytest.approx(0.6)
    assert structure_of(model, 0.5).reached_outputs.tolist() == [True, False]
    assert structure_of(model, 0.5).used_inputs.tolist() == [False, True]
    kept = structure_of(model, 0.5)
    # 0.9 is kept, but nothing leads on from it.
    assert [(layer.kept, layer.active) for layer in kept.layers] == [(2, 1), (1, 1)]


def test_blocks_are_spread_over_their_weights():
    model = random_network(1, 10, 7, 3, block=(4, 3))
    for layer in layers_of(model):
        kept = kept_weights(layer, 0.5)
        assert torch.equal(kept, layer.mean_weight(fastlbbnn.WeightMode.MEDIAN_MEAN) != 0)
    assert bottleneck(model) == max(min(alpha) for _, alpha in paths(model))


def test_layers_without_indicators_keep_everything():
    torch.manual_seed(0)
    model = nn.Sequential(GaussianLinear(4, 3), nn.ReLU(), LBBNNLinear(3, 2))
    nn.init.constant_(model[2].inclusion.omega, -1.0)
    model[2].inclusion.omega.data[1, 2] = -0.5
    assert bottleneck(model) == torch.sigmoid(torch.tensor(-0.5)).item()
    assert not is_connected(model)
    assert [row.density for row in layer_structure(model)] == [1.0, 0.0]
    assert bottleneck(GaussianLinear(3, 2)) == 1.0


def test_a_pruned_plain_network_keeps_what_is_not_zero():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight[0] = 0.0
        model[2].weight[0, 1] = 0.0
    assert not is_connected(model)
    assert [row.kept for row in layer_structure(model)] == [3, 1]
    assert [row.active for row in layer_structure(model)] == [0, 0]


@pytest.mark.parametrize("layer", [HorseshoeLinear, NormalJeffreysLinear])
def test_layers_with_a_rule_of_their_own_keep_the_weights_of_its_inputs(layer):
    torch.manual_seed(0)
    model = MLP(7, 5, 2, layer=layer)
    for pruned in [m for m in model if isinstance(m, layer)]:
        for p in pruned.scale_parameters():
            nn.init.normal_(p)
        kept = [pruned.kept_inputs(float(t)).sum().item() for t in torch.linspace(-20, 20, 400)]
        # A threshold that keeps some and not all.
        at = next(i for i, count in enumerate(kept) if 0 < count < pruned.in_features)
        pruned.threshold = float(torch.linspace(-20, 20, 400)[at])
    first, second = (pruned.kept_inputs() for pruned in [m for m in model if isinstance(m, layer)])
    for threshold in (0.1, 0.9):  # a probability, which the rule does not know
        got = structure_of(model, threshold)
        assert [row.kept for row in got.layers] == [5 * int(first.sum()), 2 * int(second.sum())]
        assert torch.equal(got.used_inputs, first)
        # Weights into units that the next layer prunes are kept and lead nowhere.
        assert got.layers[0].active == int(first.sum()) * int(second.sum())
        assert got.density == pytest.approx(fastlbbnn.density(model, "median", threshold))
    with torch.no_grad(), fastlbbnn.weights("median-mean"):
        x = torch.randn(3, 7)
        changed = x.clone()
        changed[:, ~first] += 1.0
        torch.testing.assert_close(model(x), model(changed))


def test_a_disconnected_model_is_resolved_and_reported():
    model = with_probabilities([[0.9, 0.3]], [[0.4]])
    assert not is_connected(model)
    with pytest.warns(UserWarning, match=r"no path .* above threshold=0.5: using threshold=0.4"):
        found = resolve_threshold(model)
    assert found == pytest.approx(0.4) and is_connected(model, found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_threshold(model, warn=False) == found
        assert resolve_threshold(model, 0.35) == 0.35


def test_where_nothing_helps_it_says_so():
    model = MLP(2, 2, 1)
    nn.init.constant_(model[2].inclusion.omega, -200.0)  # sigmoid is 0 in float32
    with pytest.raises(ValueError, match="no threshold connects them"):
        connecting_threshold(model)
    with pytest.warns(UserWarning, match="the outputs are constants: no threshold connects them"):
        assert resolve_threshold(model) == 0.5


def test_select_reconnects_when_asked_and_else_says_how():
    model = with_probabilities([[0.9, 0.3]], [[0.4]]).float()
    with pytest.warns(UserWarning, match=r"same output for every input \(threshold=0.4 is the closest"):
        assert fastlbbnn.select(model).is_constant
    with pytest.warns(UserWarning, match="using threshold=0.4"):
        small = fastlbbnn.select(model, reconnect=True)
    assert not small.is_constant and small.nnz == 2
    assert small.network.threshold == connecting_threshold(model)
    x = torch.randn(5, 2)
    expected = fastlbbnn.predict(
        model, x, mode="median-mean", threshold=small.network.threshold, transform=lambda o: o
    )
    torch.testing.assert_close(small(x), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: structure_of(m, 1.0), ValueError, "threshold=1.0"),
        (lambda m: is_connected(m, "0.5"), TypeError, "threshold is a str"),
        (lambda m: connecting_threshold(m, -0.1), ValueError, "threshold=-0.1"),
        (lambda m: structure_of(nn.Sequential(m, nn.Tanh())), TypeError, "cannot use Tanh"),
        (lambda m: bottleneck(nn.Sequential(m, m)), ValueError, "takes 3 inputs and the one before has 2"),
        (lambda m: bottleneck(nn.Sequential()), TypeError, "it has no structure"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(LBBNNLinear(3, 2))
