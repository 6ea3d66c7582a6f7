"""The density dial: what is asked for is what the median model has."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fastlbbnn
from fastlbbnn.inference.dial import DensityDial, DensityError
from fastlbbnn.nn import MLP, LBBNNLinear

FAMILIES = ("mean-field", "mvn", "low-rank")


def _model(sizes=(20, 16, 12, 3), **kwargs):
    torch.manual_seed(0)
    return MLP(*sizes, **kwargs)


def _logits(model):
    return torch.cat([m.inclusion.location().detach().flatten() for m in model if hasattr(m, "inclusion")])


def _data(n=200):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 20, generator=generator)
    return x, (x[:, :3].sum(1) > 0).long() + (x[:, 3] > 1).long()


def _train(model, dial, optimizer, steps, generator):
    x, y = _data()
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(x), (50,), generator=generator)
        bound = fastlbbnn.elbo(
            model, x[rows], y[rows], n_data=len(x), likelihood="categorical", generator=generator
        )
        optimizer.zero_grad()
        bound.loss.backward()
        optimizer.step()
        dial.step()


def _optimizer(model, kind=torch.optim.Adam):
    return kind(fastlbbnn.param_groups(model, weights=1e-2, inclusion=1e-1), lr=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("asked", [{"density": 0.1}, {"weights": 37}])
def test_the_median_model_has_the_weights_that_were_asked_for(family, asked):
    model = _model(inclusion=family)
    dial = DensityDial(model, **asked, steps=60)
    _train(model, dial, _optimizer(model), 60, torch.Generator().manual_seed(2))
    total = sum(m.kappa.numel() for m in model if hasattr(m, "kappa"))
    expected = asked.get("weights", round(asked.get("density", 0.0) * total))
    assert dial.is_held
    assert dial.median_weights == expected
    assert fastlbbnn.density(model, "median-mean") == pytest.approx(expected / total, rel=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, fastlbbnn.Adam])
def test_any_optimiser_will_do(kind):
    model = _model()
    dial = DensityDial(model, weights=50, steps=20)
    _train(model, dial, _optimizer(model, kind), 25, torch.Generator().manual_seed(2))
    assert dial.median_weights == 50


@pytest.mark.parametrize("block", [(4, 4), (16, 1), (1, 20), (3, 7)])
def test_blocks_are_kept_whole_and_counted_by_their_weights(block):
    model = nn.Sequential(LBBNNLinear(20, 64, block=block), nn.ReLU(), LBBNNLinear(64, 40, block=block))
    total = 20 * 64 + 64 * 40
    dial = DensityDial(model, density=0.4, steps=10)
    for layer in (model[0], model[2]):
        layer.inclusion.omega.data.normal_()
    held = dial.hold()
    assert held.weights == dial.median_weights
    assert held.weights == pytest.approx(0.4 * total, rel=0.03)
    masks = [layer.inclusion.chosen() for layer in (model[0], model[2])]
    counted = sum(
        int(fastlbbnn.reference.expand_blocks(mask, *layer.kappa.shape, block).sum())
        for mask, layer in zip(masks, (model[0], model[2]))
    )
    assert counted == held.weights


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expected_density_follows_the_path(family):
    model = _model(inclusion=family)
    dial = DensityDial(model, density=0.05, steps=100, every=1)
    for t in range(1, 50):
        dial.step()
        alpha = torch.cat([m.inclusion_probabilities().flatten() for m in model if hasattr(m, "inclusion")])
        # The dial knows the probabilities of dependent indicators by MacKay's approximation.
        tolerance = 1e-3 if family == "mean-field" else 0.05
        assert alpha.mean().item() == pytest.approx(dial.path(t), rel=tolerance)
    assert dial.path(0) == pytest.approx(0.5)
    assert dial.path(100) == pytest.approx(round(0.05 * dial.total) / dial.total)


def test_a_correction_moves_all_log_odds_and_the_prior_alike():
    model = _model()
    before = _logits(model)
    dial = DensityDial(model, density=0.05, steps=100)
    dial.step()
    moved = _logits(model) - before
    torch.testing.assert_close(moved, moved[:1].expand_as(moved), atol=1e-5, rtol=0)
    for layer in (model[0], model[2], model[4]):
        assert float(layer.prior.log_odds) == pytest.approx(moved[0].item(), abs=1e-5)


def test_a_correction_is_the_nearest_posterior_with_so_many_weights():
    """Among all independent indicators with the path's sum, those shifted alike have the least KL divergence."""
    model = _model((6, 5))
    model[0].inclusion.omega.data.normal_(generator=torch.Generator().manual_seed(3))
    q = torch.sigmoid(_logits(model).double())
    dial = DensityDial(model, density=0.3, steps=100)
    dial.step()
    p = torch.sigmoid(_logits(model).double())

    def divergence(p):
        return (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()

    generator = torch.Generator().manual_seed(4)
    for _ in range(50):
        direction = torch.randn(len(p), generator=generator, dtype=torch.float64)
        direction -= direction.mean()
        assert divergence(p + 1e-3 * direction) > divergence(p)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_goes_on_to_the_bit(family):
    def start():
        model = _model(inclusion=family)
        return model, DensityDial(model, weights=60, steps=40), _optimizer(model)

    model, dial, optimizer = start()
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(6)
    _train(model, dial, optimizer, 25, generator)
    states = [part.state_dict() for part in (model, dial, optimizer)]
    states = [{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in s.items()} for s in states]
    random = generator.get_state(), torch.get_rng_state()

    again, dial_again, optimizer_again = start()
    import copy

    for part, state in zip((again, dial_again, optimizer_again), copy.deepcopy(states)):
        part.load_state_dict(state)
    _train(model, dial, optimizer, 30, generator)
    generator.set_state(random[0])
    torch.set_rng_state(random[1])
    _train(again, dial_again, optimizer_again, 30, generator)
    for (name, one), other in zip(model.state_dict().items(), again.state_dict().values()):
        assert torch.equal(one, other), name
    assert dial_again.median_weights == 60


def test_layers_can_have_budgets_of_their_own():
    model = _model()
    first = DensityDial(model[0], weights=11, steps=5)
    others = DensityDial([model[2], model[4]], density=0.25, steps=5)
    for _ in range(5):
        first.step()
        others.step()
    assert int(model[0].inclusion.chosen().sum()) == 11
    kept = sum(int(model[i].inclusion.chosen().sum()) for i in (2, 4))
    assert kept == round(0.25 * (16 * 12 + 12 * 3))


def test_what_is_held_does_not_move():
    model = _model()
    dial = DensityDial(model, weights=40, steps=10)
    optimizer = _optimizer(model)
    generator = torch.Generator().manual_seed(2)
    _train(model, dial, optimizer, 10, generator)
    held = _logits(model)
    _train(model, dial, optimizer, 15, generator)
    assert torch.equal(_logits(model), held)


def test_equal_log_odds_are_told_apart():
    model = _model()
    for layer in (model[0], model[2], model[4]):
        layer.inclusion.omega.data.zero_()
    dial = DensityDial(model, weights=17, steps=10)
    dial.hold()
    assert dial.median_weights == 17


def test_everything_and_one_weight_can_be_asked_for():
    for asked in ({"density": 1.0}, {"weights": 1}):
        model = _model()
        dial = DensityDial(model, **asked, steps=3)
        for _ in range(3):
            dial.step()
        assert dial.median_weights == dial.asked


def test_the_prior_odds_travel_with_the_model():
    model = _model()
    DensityDial(model, density=0.05, steps=100).step()
    other = _model()
    other.load_state_dict(model.state_dict())
    assert float(fastlbbnn.kl(other)) == float(fastlbbnn.kl(model))
    fresh = _model()
    other.load_state_dict(fresh.state_dict())
    assert other[0].prior.log_odds is None
    assert float(fastlbbnn.kl(other)) == float(fastlbbnn.kl(fresh))


@pytest.mark.parametrize(("arguments", "message"), [
    ({}, "expected one of the two"),
    ({"density": 0.1, "weights": 5}, "expected one of the two"),
    ({"density": 0.0}, "above 0"),
    ({"density": 1.5}, "at most 1"),
    ({"weights": 10**6}, "expected at most as many"),
    ({"density": 1e-6}, "less than one"),
    ({"density": 0.1, "start": 1.0}, "between 0 and 1"),
])
def test_what_cannot_be_met_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        DensityDial(_model(), steps=10, **arguments)


def test_blocks_that_are_too_large_are_said():
    layer = LBBNNLinear(64, 64, block=(32, 32))
    with pytest.raises(DensityError, match="smallest block, 1024"):
        DensityDial(layer, weights=100, steps=10)
    dial = DensityDial(layer, weights=1500, steps=10)
    before = layer.inclusion.location().clone()
    with pytest.raises(DensityError, match="the blocks that were learned allow"):
        dial.hold()
    assert torch.equal(before, layer.inclusion.location())


def test_a_model_without_indicators_is_refused():
    with pytest.raises(ValueError, match="expected at least one LBBNNLinear"):
        DensityDial(nn.Linear(3, 2), density=0.1, steps=10)


def test_log_odds_that_are_not_finite_are_said():
    model = _model()
    model[0].inclusion.omega.data[0, 0] = math.nan
    with pytest.raises(ValueError, match="smaller step sizes"):
        DensityDial(model, density=0.1, steps=10).step()
