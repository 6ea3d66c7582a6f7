"""Layers whose indicators have a structure: modes, samples, backends, training, arguments."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support.helpers import EPS32
from support.random_logits import RANDOM, make, perturb
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn import reference
from fastlbbnn.nn import (
    MLP,
    MVN,
    GaussianLinear,
    LBBNNLinear,
    LowRankMVN,
    MeanField,
    WeightMode,
    expand_samples,
    weights,
)
from fastlbbnn.nn.inclusion import FAMILIES, Inclusion
from fastlbbnn.nn.layer import bayesian_layers


@pytest.fixture(params=list(RANDOM))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def layer_of(name: str, **kwargs) -> LBBNNLinear:
    torch.manual_seed(2)
    layer = LBBNNLinear(9, 6, inclusion=RANDOM[name], **kwargs)
    perturb(layer.inclusion)
    return layer


@pytest.mark.parametrize("block", [(1, 1), (2, 3)])
def test_modes_that_do_not_draw_use_marginal_probabilities(name, block):
    layer = layer_of(name, block=block).eval()
    x = torch.randn(4, 9)
    state = torch.get_rng_state()
    alpha = reference.expand_blocks(layer.inclusion_probabilities(), 6, 9, block)
    assert torch.equal(layer(x), nn.functional.linear(x, alpha * layer.kappa, layer.bias_kappa))
    for threshold in (0.5, 0.6):
        kept = alpha > threshold
        with weights("median-mean", threshold=threshold):
            expected = nn.functional.linear(x, kept * layer.kappa, layer.bias_kappa)
            assert torch.equal(layer(x), expected)
        assert layer.density(threshold=threshold) == pytest.approx(kept.float().mean().item())
    assert layer.density("sampled") == pytest.approx(alpha.mean().item())
    decided = layer.decided_logits(0.5)
    assert torch.equal(reference.expand_blocks(decided > 0, 6, 9, block), alpha > 0.5)
    selected = fastlbbnn.select(nn.Sequential(layer))
    with weights("median-mean"):
        # Sums of at most nine products, in another order.
        torch.testing.assert_close(torch.as_tensor(selected(x)), layer(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.get_rng_state(), state), "something has drawn"


@pytest.mark.parametrize("mode", ["relaxed", "sampled", "median"])
@pytest.mark.parametrize("samples", [None, 3])
def test_draws_are_reproducible_through_a_generator(name, mode, samples):
    layer = layer_of(name)
    x = torch.randn(4, 9)
    inputs = x if samples is None else expand_samples(x, samples)
    outputs = []
    for seed in (3, 3, 4):
        with weights(mode, samples=samples, generator=torch.Generator().manual_seed(seed)):
            outputs.append(layer(inputs))
    assert torch.equal(*outputs[:2])
    assert not torch.equal(*outputs[1:])


@pytest.mark.parametrize("network", ["layers", "mlp"])
def test_a_kept_structure_is_found_once_and_the_same(name, network, monkeypatch):
    if network == "mlp":
        torch.manual_seed(2)
        model = MLP(9, 6, 3, inclusion=RANDOM[name])
        for layer in bayesian_layers(model):
            perturb(layer.inclusion)
    else:
        model = nn.Sequential(layer_of(name))
    found = []
    usual = Inclusion.chosen
    monkeypatch.setattr(Inclusion, "chosen", lambda self, t: found.append(self) or usual(self, t))
    x = torch.randn(4, 9)

    def draws(**kept) -> list[Tensor]:
        found.clear()
        with weights(threshold=0.6, generator=torch.Generator().manual_seed(1), **kept):
            # An objective sets the mode itself, within.
            outputs = []
            for _ in range(3):
                with weights("median"):
                    outputs.append(model(x))
        return outputs

    expected, layers = draws(), len(set(found))
    assert len(found) == 3 * layers
    for one, other in zip(draws(keep_structure=True), expected):
        assert torch.equal(one, other)
    assert len(found) == layers
    # Nothing is left of it afterwards.
    for inclusion in set(found):
        inclusion.xi.data.fill_(-9.0)
    with weights("median", threshold=0.6, generator=torch.Generator().manual_seed(1)):
        assert not torch.equal(model(x), expected[0])


@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_every_sample_has_logits_of_its_own(name, estimator, monkeypatch):
    layer = layer_of(name, estimator=estimator)
    drawn: list[Tensor] = []
    original = type(layer.inclusion)._draw
    monkeypatch.setattr(
        type(layer.inclusion), "_draw", lambda self, seed: drawn.append(original(self, seed)) or drawn[-1]
    )
    x = torch.randn(4, 9)
    with weights(samples=3):
        assert layer(expand_samples(x, 3)).shape == (3, 4, 6)
        assert layer(torch.randn(3, 2, 2, 9)).shape == (3, 2, 2, 6)
    assert len(drawn) == 6
    assert len({omega.sum().item() for omega in drawn}) == 6


def test_samples_are_averages_of_single_draws(name):
    """Outputs are those of single passes with the samples' seeds, sums their mean."""
    layer = layer_of(name)
    x = torch.randn(3, 4, 9)
    with weights("sampled", samples=3, generator=torch.Generator().manual_seed(6)):
        together = layer(x)
    single = torch.Generator().manual_seed(6)
    for s in range(3):
        with weights("sampled", generator=single):
            assert torch.equal(layer(x[s]), together[s])


def test_backends_agree_given_the_same_seed(name, cpp):
    """Both draw the same omega, so that kernels differ by the rounding of sums of nine products."""
    layer = layer_of(name)
    x = torch.randn(4, 9)
    results = []
    for backend in ("reference", "cpp"):
        with fastlbbnn.use_backend(backend):
            bound = fastlbbnn.elbo(
                layer, x, torch.zeros(4, 6), n_data=40, likelihood="gaussian",
                generator=torch.Generator().manual_seed(1),
            )
            results.append((bound.loss, *torch.autograd.grad(bound.loss, list(layer.parameters()))))
    for exact, got in zip(*results):
        # Gates at temperature 1/2 double an error of omega; sums of at most 54 terms follow.
        size = max(exact.abs().max().item(), 1.0)
        torch.testing.assert_close(got, exact, rtol=0.0, atol=100 * EPS32 * size)


@pytest.mark.parametrize("mode", list(WeightMode))
@pytest.mark.parametrize("samples", [None, 3])
def test_an_mlp_draws_what_a_sequential_draws(name, mode, samples):
    torch.manual_seed(0)
    mlp = MLP(7, 6, 5, 3, inclusion=RANDOM[name])
    mixed = MLP(7, 6, 5, 3, inclusion=RANDOM[name])
    mixed[2] = GaussianLinear(6, 5)
    x = torch.randn(4, 7)
    inputs = x if samples is None else expand_samples(x, samples)
    for model in (mlp, mixed):
        results = []
        for network in (model, nn.Sequential(*model)):
            with weights(mode, samples=samples, generator=torch.Generator().manual_seed(4)):
                results.append(network(inputs))
        # Three layers of dot products of at most seven terms, summed in another order.
        tolerance = 3 * 7 * 4 * EPS32 * results[1].abs().max().item()
        torch.testing.assert_close(*results, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("own", [True, False])
def test_training_is_that_of_a_sequential(name, own):
    torch.manual_seed(0)
    first = MLP(7, 6, 3, inclusion=RANDOM[name], inclusion_options={"prior_logit_sd": 1.0})
    models = (first, nn.Sequential(*copy.deepcopy(list(first))))
    before = copy.deepcopy(first.state_dict())
    for model in models:
        groups = fastlbbnn.param_groups(model, weights=1e-2, inclusion=2e-2, covariance=3e-2)
        optimizer = (fastlbbnn.Adam if own else torch.optim.Adam)(groups)
        for i in range(5):
            g = torch.Generator().manual_seed(i)
            x, y = torch.randn(9, 7, generator=g), torch.randint(3, (9,), generator=g)
            loss = fastlbbnn.elbo(
                model, x, y, n_data=100, samples=1 + i % 2, generator=g, likelihood="categorical"
            ).loss
            if own:
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for (key, a), b in zip(models[0].named_parameters(), models[1].parameters()):
        # Five steps of at most 3e-2; Adam divides rounding errors by the gradients' size, so that a
        # gradient that is 100 EPS32 off moves a step by 1e-5 of it.
        torch.testing.assert_close(a, b, rtol=0.0, atol=5 * (3e-2 * 1e-4 + b.abs().max().item() * EPS32))
        assert not torch.equal(a, before[key]), f"{key} has not moved"


@pytest.mark.parametrize("name", ["mvn", "mvn-layer", "rank-1"])
@pytest.mark.parametrize("build", ["mlp", "layers", "local"])
@pytest.mark.parametrize("samples", [1, 2])
def test_updates_inside_the_pass_are_those_of_torchs_adam(name, build, samples, cpp):
    """Weights are updated where their gradients are; the logits' gradients go on to xi and Sigma."""
    estimator = "local" if build == "local" else "concrete"
    torch.manual_seed(0)
    model = MLP(7, 6, 3, inclusion=RANDOM[name], estimator=estimator)
    models = [model, copy.deepcopy(model)]
    if build == "layers":
        models = [nn.Sequential(*m) for m in models]
    kinds = (fastlbbnn.Adam, torch.optim.Adam)
    optimizers = [kind(fastlbbnn.param_groups(m, weights=1e-2)) for kind, m in zip(kinds, models)]
    for i in range(4):
        for own, m, optimizer in zip((True, False), models, optimizers):
            g = torch.Generator().manual_seed(i)
            x, y = torch.randn(9, 7, generator=g), torch.randint(3, (9,), generator=g)
            loss = fastlbbnn.elbo(
                m, x, y, n_data=100, samples=samples, generator=g, likelihood="categorical"
            ).loss
            if own:
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    inside = [p.grad is None for p in models[0][0].parameters()]
    assert any(inside) == (samples == 1), "a single draw updates weights inside the pass"
    for a, b in zip(*(m.parameters() for m in models)):
        # As above: four steps of at most 1e-2.
        torch.testing.assert_close(a, b, rtol=0.0, atol=4 * (1e-2 * 1e-4 + b.abs().max().item() * EPS32))


def test_the_sampled_kl_works_with_random_logits(name):
    layer = layer_of(name)
    layer.estimator = "concrete"
    x, y = torch.randn(4, 9), torch.randn(4, 6)
    bound = fastlbbnn.elbo(layer, x, y, n_data=4, likelihood="gaussian", kl="sampled", samples=2)
    bound.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_state_round_trips_and_copies(name):
    layer = layer_of(name)
    other = LBBNNLinear(9, 6, inclusion=RANDOM[name])
    other.load_state_dict(layer.state_dict())
    x = torch.randn(4, 9)
    for twin in (other, copy.deepcopy(layer)):
        results = []
        for m in (layer, twin):
            with weights("sampled", generator=torch.Generator().manual_seed(3)):
                results.append(m(x))
        assert torch.equal(*results)


def test_parameters_have_step_sizes_by_kind(name):
    layer = layer_of(name)
    groups = {g["name"]: g for g in fastlbbnn.param_groups(layer, weights=1.0, inclusion=2.0, covariance=3.0)}
    assert [id(p) for p in groups["inclusion"]["params"]] == [id(layer.inclusion.xi)]
    rest = [p for p in layer.inclusion.parameters() if p is not layer.inclusion.xi]
    assert {id(p) for p in groups["covariance"]["params"]} == {id(p) for p in rest}
    assert (groups["inclusion"]["lr"], groups["covariance"]["lr"]) == (2.0, 3.0)


def test_resetting_starts_anew(name):
    layer = layer_of(name)
    torch.manual_seed(7)
    layer.reset_parameters()
    torch.manual_seed(7)
    fresh = LBBNNLinear(9, 6, inclusion=RANDOM[name])
    for a, b in zip(layer.state_dict().values(), fresh.state_dict().values()):
        assert torch.equal(a, b)


def test_bfloat16_draws(name):
    layer = LBBNNLinear(5, 4, inclusion=RANDOM[name], dtype=torch.bfloat16)
    assert layer(torch.randn(3, 5).bfloat16()).dtype == torch.bfloat16
    assert layer.inclusion_probabilities().dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["mvn", "rank-1"])
def test_draws_are_traced_into_one_graph(name):
    layer = layer_of(name)
    traced = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(4, 9)
    for training in (True, False):
        results = []
        for call in (layer.train(training), traced):
            torch.manual_seed(5)
            results.append(call(x))
        # While tracing, marginal probabilities take the nodes of the widest spread: 2e-7 (``mean_sigmoid``).
        torch.testing.assert_close(*results, rtol=0.0, atol=1e-5)


def test_rank_0_is_independent_logits_with_variances_of_their_own():
    family = make("rank-0")
    assert family.factor is None
    off = family.covariance() - torch.diag_embed(family.variances())
    assert off.abs().max() == 0.0


def test_without_spread_random_logits_are_mean_field():
    """As Sigma goes to zero, draws, KL and probabilities are those of mean-field logits."""
    torch.manual_seed(0)
    field = LBBNNLinear(9, 6)
    for name in RANDOM:
        layer = LBBNNLinear(9, 6, inclusion=RANDOM[name], inclusion_options={"scale": 1e-12})
        layer.load_state_dict(field.state_dict(), strict=False)
        layer.inclusion.xi.data.copy_(field.omega)
        x = torch.randn(4, 9)
        results = []
        for m in (layer, field):
            with weights("sampled", generator=torch.Generator().manual_seed(3)):
                results.append(m(x))
        assert torch.equal(*results), name
        # A fresh draw of omega is off by 1e-11 at most.
        torch.testing.assert_close(layer.kl(), field.kl(), rtol=1e-6, atol=0.0)
        torch.testing.assert_close(layer.inclusion_probabilities(), torch.sigmoid(field.omega))


# --- arguments -----------------------------------------------------------------------------------


class _OneRow(MeanField):
    """A family of somebody else's that gets the grid wrong."""

    def __init__(self, rows: int, cols: int, **kwargs) -> None:
        super().__init__(1, cols, **kwargs)


def test_a_family_can_be_named_or_made():
    assert type(LBBNNLinear(5, 4).inclusion) is MeanField
    assert not LBBNNLinear(5, 4).random_logits
    assert {name: type(LBBNNLinear(5, 4, inclusion=name).inclusion) for name in FAMILIES} == FAMILIES
    layer = LBBNNLinear(8, 9, block=(3, 2), inclusion="low-rank", inclusion_options={"rank": 2})
    assert layer.inclusion.factor.shape == (3, 4, 2)
    assert isinstance(LBBNNLinear(5, 4, inclusion=MeanField).inclusion, Inclusion)
    assert "rank=2, over='inputs-by-row'" in repr(layer)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LBBNNLinear(5, 4, inclusion="mf"), ValueError, "inclusion='mf'.*'mean-field', 'mvn'"),
        (lambda: LBBNNLinear(5, 4, inclusion=3), TypeError, "inclusion is a int"),
        (lambda: LBBNNLinear(5, 4, inclusion=lambda r, c, **k: nn.Linear(r, c)), TypeError, "made a Linear"),
        (lambda: LBBNNLinear(5, 4, inclusion=_OneRow), ValueError, r"logits \[1, 5\]; expected \[4, 5\]"),
        (lambda: LBBNNLinear(5, 4, inclusion="mvn", inclusion_options={"rank": 1}), TypeError, "rank"),
        (lambda: MVN(4, 5, over="rows"), ValueError, "over='rows'; expected one of 'inputs'"),
        (lambda: MVN(4, 5, scale=0.0), ValueError, "scale=0.0"),
        (lambda: MVN(4, 5, scale="1"), TypeError, "scale='1' is a str"),
        (lambda: MVN(4, 5, prior_logit_sd=-1.0), ValueError, "prior_logit_sd=-1.0"),
        (lambda: MVN(4, 5, prior_logit_mean=0.0), ValueError, "prior_logit_mean=0.0 without"),
        (lambda: MVN(400, 784, over="layer"), ValueError, r"take 1465\.\d GiB .* over='inputs'"),
        (lambda: LowRankMVN(4, 5, rank=-1), ValueError, "rank=-1"),
        (lambda: LowRankMVN(4, 5, rank=1.0), TypeError, "rank=1.0 is a float"),
        (lambda: LowRankMVN(4, 5, over="layer"), ValueError, "over='layer'"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_parameters_that_are_not_finite_are_found(name, backend):
    layer = layer_of(name)
    with torch.no_grad():
        layer.inclusion.log_scale.view(-1)[2] = math.nan
    with fastlbbnn.use_backend(backend), pytest.raises(ValueError, match="omega holds"):
        layer(torch.randn(3, 9))
    with pytest.raises(ValueError, match="standard deviation nan"):
        layer.inclusion_probabilities()
