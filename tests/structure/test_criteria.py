"""WAIC and DIC against closed forms; thresholds chosen by them; the most probable model."""

from __future__ import annotations

import math

import pytest
import torch
from support.selected import layers_of
from torch import nn

import fastlbbnn
from fastlbbnn import predict
from fastlbbnn.inference.families import Gaussian
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear
from fastlbbnn.prediction.metrics import nll_of_draws
from fastlbbnn.structure import criteria
from fastlbbnn.structure.criteria import (
    best_threshold,
    criterion_of,
    dic,
    most_probable_model,
    waic,
    with_structure,
)
from fastlbbnn.structure.most_probable import most_probable_signs

# --- y_i ~ N(theta, s2) with theta | y ~ N(m, v) ---------------------------------------------------

S2, M, V = 0.5, 0.3, 0.04
Y = torch.tensor([0.1, 0.9, -0.6, 0.4, 1.3], dtype=torch.float64)


def log_normal(y, mean, variance):
    return -0.5 * ((y - mean) ** 2 / variance + math.log(2 * math.pi * variance))


def exact_waic() -> tuple[float, float]:
    """lppd_i = log N(y_i; m, v + s2). log p(y_i | theta) is a constant minus (y_i - theta)^2 / (2 s2), and
    for d = y_i - m the variance of (d - sqrt(v) z)^2 is 4 d^2 v + 2 v^2.
    """
    effective = ((4 * (Y - M) ** 2 * V + 2 * V**2) / (4 * S2**2)).sum().item()
    return -2 * (log_normal(Y, M, V + S2).sum().item() - effective), effective


def exact_dic() -> tuple[float, float]:
    """The mean of sum (y_i - theta)^2 / s2 exceeds its value at m by n v / s2."""
    effective = len(Y) * V / S2
    return -2 * log_normal(Y, M, S2).sum().item() + 2 * effective, effective


def drawn_log_prob(draws: int) -> torch.Tensor:
    theta = M + math.sqrt(V) * torch.randn(
        draws, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    return log_normal(Y, theta, S2)


def test_waic_is_that_of_the_conjugate_model():
    value, effective = exact_waic()
    # Twenty batches of draws give the error of their mean; the whole has that error, too.
    log_prob = drawn_log_prob(200_000)
    parts = torch.tensor([waic(p) for p in log_prob.chunk(20)], dtype=torch.float64)
    error = parts.std(0) / math.sqrt(20)
    got = waic(log_prob)
    assert abs(got.value - value) < 4.5 * error[0]
    assert abs(got.effective_parameters - effective) < 4.5 * error[1]
    assert error[0] < 0.01 and error[1] < 0.01  # a test that says something


def test_dic_is_that_of_the_conjugate_model():
    value, effective = exact_dic()
    log_prob, at_mean = drawn_log_prob(200_000), log_normal(Y, M, S2)
    parts = torch.tensor([dic(p, at_mean) for p in log_prob.chunk(20)], dtype=torch.float64)
    error = parts.std(0) / math.sqrt(20)
    got = dic(log_prob, at_mean)
    assert abs(got.value - value) < 4.5 * error[0]
    assert abs(got.effective_parameters - effective) < 4.5 * error[1]
    assert error[0] < 0.01 and error[1] < 0.01


def test_criteria_of_a_network_are_those_of_its_posterior():
    """The same model as a layer with one weight, theta, and the input 1."""
    layer = GaussianLinear(1, 1, bias=False)
    layer.kappa.data.fill_(M)
    layer.rho.data.fill_(math.log(math.expm1(math.sqrt(V))))
    x, y = torch.ones(len(Y), 1), Y.float()
    arguments = {"likelihood": Gaussian(S2), "samples": 20_000}
    for name, (value, effective) in (("waic", exact_waic()), ("dic", exact_dic())):
        got = criterion_of(layer, x, y, name, generator=torch.Generator().manual_seed(0), **arguments)
        # sqrt(10) times the error of 200,000 draws above.
        assert got.value == pytest.approx(value, abs=0.05)
        assert got.effective_parameters == pytest.approx(effective, abs=0.03)
    got = criterion_of(layer, x, y, "nll", **arguments)
    assert got.value == pytest.approx(-log_normal(Y, M, V + S2).mean().item(), abs=0.01)
    assert math.isnan(got.effective_parameters)


def test_equal_draws_have_no_effective_parameters():
    log_prob = log_normal(Y, M, S2).expand(7, -1)
    deviance = -2 * log_prob[0].sum().item()
    assert waic(log_prob) == pytest.approx((deviance, 0.0))
    assert dic(log_prob, log_prob[0]) == pytest.approx((deviance, 0.0))


# --- thresholds ------------------------------------------------------------------------------------


def regression() -> tuple[LBBNNLinear, torch.Tensor, torch.Tensor]:
    """y = x_0 + x_1 + noise, and a layer that gives x_1 an inclusion probability of only 0.35 and the rest,
    which is nothing but a wrong weight each, one of 0.15.
    """
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=g)
    y = x[:, 0] + x[:, 1] + 0.5 * torch.randn(60, generator=g)
    layer = LBBNNLinear(6, 1, bias=False)
    layer.kappa.data = torch.tensor([[1.0, 1.0, 0.5, -0.5, 0.5, -0.5]])
    layer.rho.data.fill_(-3.0)
    layer.inclusion.omega.data = torch.logit(torch.tensor([[0.9, 0.35, 0.15, 0.15, 0.15, 0.15]]))
    return layer, x, y


@pytest.mark.parametrize("criterion", ["waic", "dic", "nll"])
def test_the_best_threshold_keeps_what_predicts_and_drops_the_rest(criterion):
    layer, x, y = regression()
    choice = best_threshold(
        layer, x, y, criterion, likelihood=Gaussian(0.25), generator=torch.Generator().manual_seed(1)
    )
    assert 0.15 <= choice.threshold < 0.35
    assert choice.threshold == 0.3  # the sparsest of 0.2 and 0.3, which select the same
    values = {row.threshold: row.criterion.value for row in choice.rows}
    assert values[0.2] == values[0.3] == min(values.values()) < values[0.5]
    densities = {row.threshold: row.density for row in choice.rows}
    assert densities[0.1] == 1.0 and densities[0.3] == pytest.approx(2 / 6)
    # At 0.95 nothing is left, which is not a candidate.
    assert max(values) == 0.8


def test_a_grid_without_a_path_says_what_would_have_one():
    layer, x, y = regression()
    with pytest.raises(ValueError, match=r"\[0.92, 0.95\] leaves a path .* the largest that does is 0.9"):
        best_threshold(layer, x, y, grid=(0.95, 0.92), likelihood="gaussian")
    with pytest.raises(ValueError, match="grid is empty"):
        best_threshold(layer, x, y, grid=(), likelihood="gaussian")


def test_averaging_over_models_has_criteria_too():
    torch.manual_seed(0)
    model, x, y = MLP(4, 5, 3, likelihood="categorical"), torch.randn(20, 4), torch.arange(20) % 3
    g = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    got = criterion_of(model, x, y, "nll", mode="sampled", samples=8, generator=g())
    drawn = predict(model, x, samples=8, average=False, generator=g())
    expected = nll_of_draws(drawn[:, torch.arange(20), y].log())
    assert got.value == pytest.approx(expected, rel=1e-5)


# --- the most probable model -----------------------------------------------------------------------


def test_with_independent_indicators_it_is_the_median_model():
    torch.manual_seed(0)
    model = nn.Sequential(LBBNNLinear(5, 4, block=(2, 2)), nn.ReLU(), GaussianLinear(4, 4), LBBNNLinear(4, 2))
    for layer in (model[0], model[3]):
        nn.init.normal_(layer.inclusion.omega)
    best = most_probable_model(model)
    alphas = [layer.inclusion_probabilities().detach() for layer in (model[0], model[3])]
    assert best.indicators[1] is None
    assert torch.equal(best.indicators[0], alphas[0] > 0.5)
    assert torch.equal(best.indicators[2], alphas[1] > 0.5)
    expected = sum(torch.maximum(a, 1 - a).double().log().sum().item() for a in alphas)
    assert best.log_probability == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("family", "options"),
    [("mvn", {}), ("mvn", {"over": "inputs-by-row"}), ("low-rank", {"rank": 2}), ("mvn", {"over": "layer"})],
)
def test_dependent_indicators_are_searched_row_by_row_or_all_at_once(family, options):
    torch.manual_seed(0)
    layer = LBBNNLinear(4, 3, inclusion=family, inclusion_options=options, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.inclusion.parameters():
            p.normal_(0.3, 0.8)
    best = most_probable_model(layer)
    inclusion = layer.inclusion
    if options.get("over") == "layer":
        expected = [most_probable_signs(inclusion.xi.flatten(), inclusion.covariance())]
    else:
        expected = [most_probable_signs(inclusion.xi[i], inclusion.row_covariance(i)) for i in range(3)]
    signs = torch.cat([found for found, _ in expected]).view(3, 4)
    assert torch.equal(best.indicators[0], signs > 0)
    assert best.log_probability == pytest.approx(sum(log_q for _, log_q in expected))


@pytest.mark.parametrize("family", ["mean-field", "mvn"])
def test_a_network_with_a_given_structure(family):
    torch.manual_seed(0)
    model = MLP(5, 4, 3, inclusion=family, likelihood="categorical")
    chosen = [torch.rand(4, 5) < 0.7, torch.rand(3, 4) < 0.7]
    fixed = with_structure(model, chosen)
    x = torch.randn(7, 5)
    for layer, indicators, old in zip(layers_of(fixed), chosen, layers_of(model)):
        assert torch.equal(layer.inclusion_probabilities() > 0.5, indicators)
        assert torch.equal(layer.kappa, old.kappa) and layer.kappa is not old.kappa
    g = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    # Certain indicators: drawing them is the median model.
    torch.testing.assert_close(
        predict(fixed, x, mode="sampled", generator=g()), predict(fixed, x, mode="median", generator=g())
    )
    assert fastlbbnn.density(fixed, "sampled") == pytest.approx(sum(c.sum().item() for c in chosen) / 32)
    assert fastlbbnn.select(fixed).nnz <= sum(int(c.sum()) for c in chosen)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: waic(torch.zeros(1, 4)), "R at least 2"),
        (lambda: waic(torch.zeros(4)), r"log_prob is \[4\]"),
        (lambda: dic(torch.zeros(3, 4), torch.zeros(3)), r"at_mean \[3\]"),
        (lambda: criterion_of(MLP(2, 2), torch.ones(1, 2), torch.zeros(1), "aic"), "criterion='aic'"),
        (lambda: criterion_of(MLP(2, 2), torch.ones(1, 2), torch.zeros(1), mode="mean"), "mode that draws"),
        (lambda: with_structure(MLP(2, 2), []), "0 entries for 1 layers"),
        (lambda: with_structure(MLP(2, 2), [None]), "layers that have some"),
        (lambda: with_structure(MLP(2, 2), [torch.ones(2, 3) > 0]), r"expected \[2, 2\]"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_module_is_public():
    assert fastlbbnn.structure.criteria is criteria
