"""Magnitude pruning of plain networks: which weights and neurons go, and that they stay away."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastlbbnn
from fastlbbnn.runs.pruning import (
    GradualPruning,
    linear_layers,
    prune_neurons,
    prune_weights,
    weight_density,
)


def network(*sizes: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(len(sizes))
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("density", [1.0, 0.5, 0.226, 0.05])
def test_within_a_layer_the_largest_weights_are_left(density):
    model = network(23, 17, 5)
    before = copy.deepcopy(model)
    masks = prune_weights(model, density)
    assert list(masks) == ["0", "2"]
    for i, name in ((0, "0"), (2, "2")):
        old, new, mask = before[i].weight, model[i].weight, masks[name]
        assert int(mask.sum()) == round(density * old.numel()) == int(new.count_nonzero())
        assert torch.equal(new, old * mask)
        if density < 1:
            assert old[mask].abs().min() >= old[~mask].abs().max()
        assert torch.equal(model[i].bias, before[i].bias)


def test_over_all_layers_the_largest_weights_are_left():
    model = network(23, 17, 5)
    with torch.no_grad():
        model[0].weight.mul_(0.01)  # so that hardly any of the first layer are among the largest
    before = copy.deepcopy(model)
    masks = prune_weights(model, 0.3, scope="global")
    total = 23 * 17 + 17 * 5
    assert sum(int(mask.sum()) for mask in masks.values()) == round(0.3 * total)
    assert weight_density(model) == round(0.3 * total) / total
    old = torch.cat([before[i].weight.flatten() for i in (0, 2)]).abs()
    mask = torch.cat([masks[name].flatten() for name in ("0", "2")])
    assert old[mask].min() >= old[~mask].max()
    assert masks["2"].float().mean() > 0.9 and masks["0"].float().mean() < 0.2


def test_equal_weights_are_counted_exactly():
    model = network(10, 10, 3)
    with torch.no_grad():
        for layer in linear_layers(model).values():
            layer.weight.fill_(0.5)
    prune_weights(model, 0.37)
    assert [int(layer.weight.count_nonzero()) for layer in linear_layers(model).values()] == [37, 11]


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("density", [0.6, 0.2, 0.079])
def test_removed_neurons_leave_the_network_without_them(scope, bias, density):
    sizes = [24, 40, 60, 10]
    model = network(*sizes, bias=bias)
    kept = prune_neurons(model, density, scope)
    assert [len(mask) for mask in kept.values()] == [40, 60]
    first, second = kept["0"], kept["2"]
    left = [24, int(first.sum()), int(second.sum()), 10]
    smaller = network(*left, bias=bias)
    with torch.no_grad():
        smaller[0].weight.copy_(model[0].weight[first])
        smaller[2].weight.copy_(model[2].weight[second][:, first])
        smaller[4].weight.copy_(model[4].weight[:, second])
        if bias:
            smaller[0].bias.copy_(model[0].bias[first])
            smaller[2].bias.copy_(model[2].bias[second])
            smaller[4].bias.copy_(model[4].bias)
    x = torch.randn(50, 24, dtype=torch.float64)
    # Zeros add nothing: the two differ by the order of at most 60 float64 additions.
    torch.testing.assert_close(model.double()(x), smaller.double()(x), rtol=0, atol=1e-13)

    total = sum(a * b for a, b in zip(sizes, sizes[1:]))
    weights = sum(a * b for a, b in zip(left, left[1:]))
    assert weight_density(model) == weights / total <= density
    # The last neuron to go was one of these two, and with it there were too many weights.
    with_one_more = ([24, left[1] + 1, left[2], 10], [24, left[1], left[2] + 1, 10])
    assert max(sum(a * b for a, b in zip(s, s[1:])) for s in with_one_more) > density * total


def test_the_smallest_neurons_go_and_layers_lose_the_same_share():
    model = network(24, 40, 60, 10)
    before = copy.deepcopy(model)
    kept = prune_neurons(model, 0.3)
    for i, name in ((0, "0"), (2, "2")):
        magnitude = before[i].weight.abs().mean(1)
        assert magnitude[kept[name]].min() >= magnitude[~kept[name]].max()
    shares = [mask.float().mean().item() for mask in kept.values()]
    assert abs(shares[0] - shares[1]) <= 1 / 40  # one neuron of the smaller layer


@pytest.mark.parametrize("density", [0.5, 0.226])
def test_a_density_of_neurons_is_a_share_of_each_layer(density):
    model = network(24, 40, 60, 10)
    kept = prune_neurons(model, density, of="neurons")
    assert sum(int(mask.sum()) for mask in kept.values()) == int(density * 100)
    assert abs(int(kept["0"].sum()) - density * 40) <= 1 and abs(int(kept["2"].sum()) - density * 60) <= 1
    assert weight_density(model) < density
    with pytest.raises(ValueError, match="of='layers'; expected one of 'weights', 'neurons'"):
        prune_neurons(model, density, of="layers")


def test_over_all_layers_the_smallest_neurons_go_but_never_the_last():
    model = network(24, 40, 60, 10)
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
    kept = prune_neurons(model, 0.2, scope="global")
    assert kept["2"].sum() == 1 and kept["0"].sum() > 1


def test_a_density_of_one_changes_nothing():
    model = network(8, 6, 4)
    before = copy.deepcopy(model.state_dict())
    assert prune_neurons(model, 1.0)["0"].all()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("prune", [prune_weights, prune_neurons])
@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, float("nan"), True, "half"])
def test_densities_are_shares(prune, density):
    with pytest.raises(ValueError, match=r"density=.*; expected the share of weights to keep"):
        prune(network(4, 3, 2), density)


@pytest.mark.parametrize("prune", [prune_weights, prune_neurons])
def test_other_nonsense_is_refused(prune):
    with pytest.raises(ValueError, match="scope='everywhere'; expected one of 'layer', 'global'"):
        prune(network(4, 3, 2), 0.5, scope="everywhere")
    with pytest.raises(ValueError, match=r"Tanh has no nn\.Linear layers"):
        prune(nn.Tanh(), 0.5)


def test_densities_that_leave_nothing_are_refused():
    model = network(4, 3, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"density=0\.05 leaves none of the 6 weights of 2"):
        prune_weights(model, 0.05)
    # 4-1-2 has 6 of the 18 weights.
    with pytest.raises(ValueError, match=r"density=0\.3; expected at least 0\.333, .* of 4-3-2"):
        prune_neurons(model, 0.3)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_neurons_need_layers_that_follow_one_another():
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 2)])
    with pytest.raises(ValueError, match="0 has 3 outputs and 1 4 inputs"):
        prune_neurons(model, 0.5)


def train(model, pruning, steps, optimizer=None, seed=0):
    """Steps of Adam on a fixed problem, the batch of step t drawn by t; yields after each."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    for t in range(seed, seed + steps):
        x = torch.randn(32, model[0].in_features, generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, : model[-1].out_features].abs()).backward()
        optimizer.step()
        pruning.step()
        yield t - seed + 1


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_gradual_pruning_follows_the_cubic_and_ends_exactly(scope):
    model = network(20, 30, 5)
    counts = {name: layer.weight.numel() for name, layer in linear_layers(model).items()}
    pruning = GradualPruning(model, 0.1, begin=10, end=57, every=10, scope=scope)
    previous = pruning.masks()["0"].clone()
    expected = 1.0
    for t in train(model, pruning, 80):
        if t in (10, 20, 30, 40, 50, 57):
            expected = 0.1 + 0.9 * (1 - (t - 10) / 47) ** 3
        masks = pruning.masks()
        for name, layer in linear_layers(model).items():
            assert torch.equal(layer.weight != 0, masks[name])
            if scope == "layer":
                assert int(masks[name].sum()) == round(expected * counts[name])
        assert sum(int(m.sum()) for m in masks.values()) == (
            round(expected * sum(counts.values())) if scope == "global"
            else sum(round(expected * n) for n in counts.values())
        )
        assert not (masks["0"] & ~previous).any()  # what is gone stays gone
        previous = masks["0"].clone()
    assert expected == 0.1


def test_masked_weights_have_no_gradient_and_the_others_train_on():
    model = network(20, 30, 5)
    pruning = GradualPruning(model, 0.2, begin=1, end=20, every=5)
    for _ in train(model, pruning, 20):
        pass
    pruned, weights = ~pruning.masks()["0"], model[0].weight.detach().clone()
    for _ in train(model, pruning, 10):
        assert (model[0].weight.grad[pruned] == 0).all()
    assert (model[0].weight[pruned] == 0).all()
    used = model[0].weight.grad != 0  # not so for the weights of units that are never active
    assert used.any() and (model[0].weight[used] != weights[used]).all()
    pruning.detach()
    model(torch.randn(8, 20)).sum().backward()
    assert (model[0].weight.grad[pruned] != 0).any()


def test_the_optimiser_that_steps_inside_the_backward_pass_works_too():
    model = network(20, 30, 5)
    pruning = GradualPruning(model, 0.1, begin=1, end=10, every=3)
    optimizer = fastlbbnn.Adam(model.parameters(), lr=1e-2)
    for t in range(20):
        x = torch.randn(32, 20, generator=torch.Generator().manual_seed(t))
        optimizer.backward_step(F.mse_loss(model(x), x[:, :5].abs()))
        pruning.step()
    assert [int(layer.weight.count_nonzero()) for layer in linear_layers(model).values()] == [60, 15]


def test_gradual_pruning_goes_on_from_its_state_to_the_bit():
    whole = network(20, 30, 5)
    pruning = GradualPruning(whole, 0.1, begin=5, end=35, every=4)
    for _ in train(whole, pruning, 40):
        pass

    first = network(20, 30, 5)
    optimizer = torch.optim.Adam(first.parameters(), lr=1e-2)
    halfway = GradualPruning(first, 0.1, begin=5, end=35, every=4)
    for _ in train(first, halfway, 17, optimizer):
        pass
    second = network(20, 30, 5)
    second.load_state_dict(first.state_dict())
    resumed = GradualPruning(second, 0.1, begin=5, end=35, every=4)
    resumed.load_state_dict(halfway.state_dict())
    again = torch.optim.Adam(second.parameters(), lr=1e-2)
    again.load_state_dict(optimizer.state_dict())
    for _ in train(second, resumed, 23, again, seed=17):
        pass
    for expected, given in zip(whole.parameters(), second.parameters()):
        assert torch.equal(expected, given)


def test_retraining_beats_pruning_at_once():
    """The point of the method: at a tenth of the weights, the loss is less than half."""

    def loss(model: nn.Module) -> float:
        x = torch.randn(500, 20, generator=torch.Generator().manual_seed(-1))
        return F.mse_loss(model(x), x[:, :5].abs()).item()

    at_once, gradually = network(20, 30, 5), network(20, 30, 5)
    for _ in train(at_once, GradualPruning(at_once, 1.0, begin=0, end=1), 600):
        pass
    prune_weights(at_once, 0.1)
    for _ in train(gradually, GradualPruning(gradually, 0.1, begin=200, end=450, every=10), 600):
        pass
    assert weight_density(gradually) == weight_density(at_once)
    assert loss(gradually) < 0.5 * loss(at_once)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"density": 0.0}, ValueError, "density=0.0; expected the share"),
        ({"scope": "both"}, ValueError, "scope='both'"),
        ({"begin": -1}, ValueError, "begin=-1; expected a step, 0 or later"),
        ({"begin": 50, "end": 50}, ValueError, "begin=50 and end=50; expected the end after"),
        ({"every": 0}, ValueError, "every=0; expected at least 1"),
        ({"end": 5.0}, TypeError, "end=5.0 is a float"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        GradualPruning(network(4, 3, 2), **{"density": 0.5, "begin": 0, "end": 100, **arguments})
