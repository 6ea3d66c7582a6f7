"""Predictions of networks that do not work on the last axis alone: each draw is a network of its own."""

from __future__ import annotations

import threading

import pytest
import torch
from support.modules import CLASSES, NETWORKS, Steps, TimeFirst, make
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn import FixedPrior, expand_samples, predict, predict_interval, reference, set_likelihood
from fastlbbnn.inference.draws import works_on_last_axis
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear, WeightMode, weights
from fastlbbnn.prediction import drawing
from fastlbbnn.prediction.predict import log_prob_draws
from fastlbbnn.structure.criteria import best_threshold

each_network = pytest.mark.parametrize("name", NETWORKS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(model: nn.Module, x: Tensor, draws: int, seed: int = 0, mode: str = "sampled") -> Tensor:
    """Class probabilities [draws, n, classes]: the module is called with its plain inputs, once per draw."""
    start = int(torch.randint(0, 2**62, (), generator=generator(seed)))
    outputs = []
    with torch.no_grad():
        for draw in range(draws):
            with weights(mode, generator=generator(start + draw)):
                outputs.append(model.eval()(x))
    return torch.stack(outputs).softmax(-1)


@each_network
def test_draws_are_those_of_the_module_called_by_hand(name):
    model, x = make(name)
    set_likelihood(model, "categorical")
    got = predict(model, x, samples=4, average=False, generator=generator())
    expected = by_hand(model, x, 4)
    assert got.shape == (4, 12, CLASSES)
    assert torch.equal(got, expected)
    assert (got[0] != got[1]).any()  # each draw has its own noise
    torch.testing.assert_close(predict(model, x, samples=4, generator=generator()), expected.mean(0))


@each_network
@pytest.mark.parametrize("mode", ["mean", "median-mean"])
def test_means_are_those_of_the_plain_module(name, mode):
    model, x = make(name)
    got = predict(model, x, mode=mode, threshold=0.3, likelihood="categorical")
    with weights(mode, threshold=0.3), torch.no_grad():
        torch.testing.assert_close(got, model.eval()(x).softmax(-1))


@each_network
def test_every_batch_of_rows_sees_the_same_draws(name):
    model, x = make(name)
    results = [
        predict(model, x, samples=3, batch_size=b, generator=generator(), likelihood="categorical")
        for b in (12, 5)
    ]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@each_network
def test_intervals_criteria_and_densities_take_any_module(name):
    model, x = make(name)
    y = torch.arange(12) % CLASSES
    set_likelihood(model, "categorical")
    p = by_hand(model, x, 3)
    log_p = log_prob_draws(model, x, y, samples=3, generator=generator(), batch_size=5)
    torch.testing.assert_close(log_p, p[:, torch.arange(12), y].log(), rtol=1e-4, atol=1e-5)
    i = predict_interval(model, x, samples=5, generator=generator(), level=0.5)
    assert i.lower.shape == (12, CLASSES) and (i.lower <= i.upper).all() and (i.lower < i.upper).any()


def test_a_threshold_is_chosen_where_a_flatten_stands_in_front():
    model, x = make("flatten")
    choice = best_threshold(
        set_likelihood(model, "categorical"), x, torch.arange(12) % CLASSES, samples=5, generator=generator()
    )
    assert choice.threshold in {row.threshold for row in choice.rows}


@pytest.mark.parametrize("steps", [4, CLASSES])
def test_a_class_for_each_step(steps):
    torch.manual_seed(0)
    model = set_likelihood(Steps(), "categorical")
    x, y = torch.randn(5, steps, 6), torch.randint(CLASSES, (5, steps))
    p = predict(model, x, samples=4, average=False, generator=generator())
    assert p.shape == (4, 5, steps, CLASSES)
    torch.testing.assert_close(p, by_hand(model, x, 4))
    log_p = log_prob_draws(model, x, y, samples=4, generator=generator())
    torch.testing.assert_close(log_p, p.gather(-1, y.expand(4, -1, -1).unsqueeze(-1))[..., 0].log().sum(-1))


def test_time_may_come_first_where_all_is_one_batch():
    torch.manual_seed(0)
    model = set_likelihood(TimeFirst(), "categorical")
    x = torch.randn(7, 5, 6)
    p = predict(model, x, samples=3, average=False, generator=generator())
    assert torch.equal(p, by_hand(model, x, 3))
    with pytest.raises(ValueError, match=r"gives 5 outputs for a batch of 4 rows of x.*batch_first=True"):
        predict(model, x, samples=3, batch_size=4)


# --- all draws in one call ------------------------------------------------------------------------


def chain(**kwargs) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(LBBNNLinear(6, 8, **kwargs), nn.ReLU(), nn.LayerNorm(8), GaussianLinear(8, CLASSES))


@pytest.mark.parametrize(
    ("build", "known"),
    [
        (lambda: MLP(6, 8, 3), True),
        (chain, True),
        (lambda: nn.Sequential(nn.Sequential(LBBNNLinear(6, 3), nn.Dropout()), nn.GELU()), True),
        (lambda: nn.Sequential(LBBNNLinear(6, 3), nn.LayerNorm((4, 3))), False),
        (lambda: nn.Sequential(LBBNNLinear(6, 3), nn.Softmax()), False),
        *((lambda n=name: make(n)[0], False) for name in NETWORKS),
        (Steps, False),
    ],
)
def test_the_sample_axis_is_for_networks_that_are_known(build, known):
    assert works_on_last_axis(build()) is known


def test_who_hooks_into_a_network_sees_plain_inputs():
    model = chain()
    seen = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    predict(model, torch.randn(4, 6), samples=3, likelihood="categorical")
    assert seen == [(4, 8)] * 3


def test_draws_in_one_call_are_those_of_a_loop_over_the_drawn_networks():
    """The same networks, weights of each drawn from the reference's stream, one after the other."""
    torch.manual_seed(0)
    model = MLP(6, 8, 3, prior=FixedPrior(psi=0.5))
    for layer in (model[0], model[2]):
        nn.init.normal_(layer.inclusion.omega)
    x = torch.randn(5, 6)
    got = predict(model, x, samples=7, average=False, transform=lambda o: o, generator=generator())
    source = generator(int(torch.randint(0, 2**62, (), generator=generator())))
    seeds = torch.randint(-(2**63), 2**63 - 1, (2,), generator=source)
    for draw in range(7):
        h = x
        for layer, seed in zip((model[0], model[2]), seeds):
            w = reference.sample_weights(
                layer.kappa, layer.rho, layer.inclusion.omega, seed=seed, sample=draw, block=(1, 1),
                temperature=1.0, hard=True,
            )
            b = reference.sample_bias(layer.bias_kappa, layer.bias_rho, seed=seed, sample=draw)
            h = nn.functional.linear(h if layer is model[0] else h.relu(), w, b)
        torch.testing.assert_close(got[draw], h.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("together", [True, False])
def test_more_draws_than_one_call_computes(monkeypatch, together):
    model, x = MLP(6, 8, 3), torch.randn(5, 6)
    monkeypatch.setattr(drawing, "AT_ONCE", 4)
    monkeypatch.setattr(drawing, "STACKED", 4)
    draws = drawing.Drawing(model, WeightMode.SAMPLED, 10, 0.5, 1, torch.device("cpu"), together)
    with torch.no_grad():
        chunks = list(draws.chunks(x))
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    assert torch.cat(chunks).flatten(1).unique(dim=0).shape[0] == 10  # no two of them equal


@each_network
def test_an_average_over_chunks_is_that_of_all_draws(name, monkeypatch):
    model, x = make(name)
    p = predict(model, x, samples=10, average=False, generator=generator(), likelihood="categorical")
    monkeypatch.setattr(drawing, "STACKED", 4)
    averaged = predict(model, x, samples=10, generator=generator(), likelihood="categorical")
    torch.testing.assert_close(averaged, p.mean(0))


def test_many_draws_take_fewer_rows_and_are_the_same(monkeypatch):
    torch.manual_seed(0)
    model, x = MLP(6, 8, 3, likelihood="categorical"), torch.randn(9, 6)
    expected = predict(model, x, samples=50, average=False, generator=generator())
    calls = []

    def spy(x: Tensor, samples: int) -> Tensor:
        calls.append(len(x) * samples)
        return expand_samples(x, samples)

    monkeypatch.setattr(drawing, "AT_ONCE", 200)
    monkeypatch.setattr(drawing, "expand_samples", spy)
    torch.testing.assert_close(predict(model, x, samples=50, average=False, generator=generator()), expected)
    assert calls == [200, 200, 50]
    i, j = (predict_interval(model, x, samples=50, batch_size=b, generator=generator()) for b in (9, 2))
    torch.testing.assert_close(i.upper, j.upper)


def test_a_selected_model_draws_the_same_whatever_their_number():
    torch.manual_seed(0)
    model, x = MLP(6, 8, 3, likelihood="categorical"), torch.randn(4, 6)
    nn.init.normal_(model[0].inclusion.omega)
    nn.init.normal_(model[2].inclusion.omega)
    small = fastlbbnn.select(model, posterior=True)
    expected = predict(model, x, mode="median", samples=250, average=False, generator=generator())
    got = small.predict(x, samples=250, average=False, likelihood="categorical", generator=generator())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# --- evaluation mode ------------------------------------------------------------------------------


def test_every_module_has_its_own_flag_back():
    model, x = make("batch normalisation")
    model.train()
    model[1].eval()  # held: its statistics stay
    model[3].eval()
    flags = [module.training for module in model.modules()]
    statistics = model[1].running_mean.clone()
    predict(model, x, likelihood="categorical")
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(model[1].running_mean, statistics)
    with pytest.raises(ValueError, match="expected a last axis"):
        predict(model, x[:, :3], likelihood="categorical")
    assert [module.training for module in model.modules()] == flags


def test_statistics_are_not_those_of_the_batch():
    model, x = make("batch normalisation")
    model.train()
    with torch.no_grad():
        model(x)
    p = predict(model, x, mode="mean", likelihood="categorical")
    torch.testing.assert_close(p[:3], predict(model, x[:3], mode="mean", likelihood="categorical"))


def test_threads_predict_beside_each_other_with_dropout_off():
    model = nn.Sequential(LBBNNLinear(6, 64), nn.Dropout(0.5), LBBNNLinear(64, 3)).train()
    x = torch.randn(20, 6)
    expected = predict(model, x, mode="mean", likelihood="categorical")
    wrong = []

    def work() -> None:
        for _ in range(100):
            if not torch.equal(predict(model, x, mode="mean", likelihood="categorical"), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model[1].training
