"""The structure families of the indicators: draws, moments, modes, gradients."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from helpers import EPS32
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn import functional, reference
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
from fastlbbnn.nn.inclusion import FAMILIES, Inclusion, RandomLogits
from fastlbbnn.nn.inclusion.random import mean_sigmoid

ROWS, COLS = 4, 5

RANDOM = {
    "mvn": partial(MVN),
    "mvn-by-row": partial(MVN, over="inputs-by-row"),
    "mvn-layer": partial(MVN, over="layer"),
    "rank-0": partial(LowRankMVN, rank=0),
    "rank-1": partial(LowRankMVN, rank=1),
    "rank-2": partial(LowRankMVN, rank=2),
    "rank-0-shared": partial(LowRankMVN, rank=0, over="inputs"),
    "rank-3-shared": partial(LowRankMVN, rank=3, over="inputs"),
}


def perturb(module: nn.Module, seed: int = 0, size: float = 0.5) -> None:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype), alpha=size)


def make(name: str, rows: int = ROWS, cols: int = COLS, dtype=torch.float64, **kwargs) -> RandomLogits:
    """A family with parameters away from their start."""
    torch.manual_seed(1)
    family = RANDOM[name](rows, cols, dtype=dtype, **kwargs)
    perturb(family)
    return family


def joint_covariance(family: RandomLogits) -> Tensor:
    """Of all logits of the layer, row by row, [rows*cols, rows*cols]."""
    sigma = family.covariance().detach()
    size = family.rows * family.cols
    if sigma.shape == (size, size):
        return sigma
    return torch.block_diag(*(family.row_covariance(r).detach() for r in range(family.rows)))


@pytest.fixture(params=list(RANDOM))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


# --- draws ---------------------------------------------------------------------------------------


def test_draws_have_the_stated_mean_and_covariance(name):
    family = make(name)
    draws = 4000
    seeds = functional.draw_seed(torch.Generator().manual_seed(5), "cpu", (draws,))
    with torch.no_grad():
        omega = torch.stack([family(s) for s in seeds]).flatten(1)
    sigma = joint_covariance(family)
    variance = sigma.diagonal()
    # Standard errors of a mean and of the covariance of normals; up to 400 entries, so 5 of them.
    assert ((omega.mean(0) - family.xi.flatten()).abs() < 5 * (variance / draws).sqrt()).all()
    error = ((variance.outer(variance) + sigma.square()) / draws).sqrt()
    assert ((torch.cov(omega.T) - sigma).abs() < 5 * error).all()


def test_covariances_are_positive_definite_whatever_the_parameters(name):
    family = make(name)
    perturb(family, 3)
    assert torch.linalg.eigvalsh(family.covariance()).min() > 0.0
    sd = family.covariance().diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = family.correlation()
    torch.testing.assert_close(correlation.diagonal(dim1=-2, dim2=-1), torch.ones_like(sd))
    assert (correlation.abs() <= 1.0 + 1e-12).all()
    torch.testing.assert_close(
        family.variances().expand(ROWS, COLS).flatten(), joint_covariance(family).diagonal()
    )


def test_a_family_starts_at_its_scale(name):
    family = RANDOM[name](40, 6, scale=2.0, dtype=torch.float64)
    variance = family.variances()
    if "rank" in name and "rank-0" not in name:
        # Half of it is the random start of F: chi-squared, with a relative sd of at most 1 a logit.
        count = variance.numel()
        assert abs(variance.mean().item() - 4.0) < 4 * 2.0 * math.sqrt(2 / count)
    else:
        torch.testing.assert_close(variance, torch.full_like(variance, 4.0))
    assert ((family.xi >= 0.0) & (family.xi <= 1.0)).all()


def test_a_seed_fixes_the_draw_and_stands_apart_from_the_weights_noise(name):
    family = make(name, 3, 70, dtype=torch.float32)
    seed, other = torch.tensor(11), torch.tensor(12)
    assert torch.equal(family(seed), family(seed))
    assert not torch.equal(family(seed), family(other))
    z = functional.logit_noise(seed, 3, 70)
    assert torch.equal(z, reference.normals(seed ^ reference.LOGIT_KEY, reference.Stream.WEIGHT, 0, 3, 70))
    eps = reference.normals(seed, reference.Stream.WEIGHT, 0, 3, 70)
    # 210 pairs: the correlation of independent noise has a standard deviation of 1/14.5.
    assert torch.corrcoef(torch.stack((z.flatten(), eps.flatten())))[0, 1].abs() < 0.28


@pytest.mark.parametrize("shape", [(40, 300), (3, 300), (40, 128), (33, 1), (1, 2100)])
def test_blocks_of_the_triangular_product_are_the_whole(shape):
    rows, cols = shape
    family = MVN(rows, cols, dtype=torch.float64)
    perturb(family, size=0.1)  # above the diagonal, too, where nothing may be read
    seed = torch.tensor(3)
    z = functional.logit_noise(seed, rows, cols).double()
    expected = family.xi + z @ family.cholesky().T
    direction = torch.randn(shape, dtype=torch.float64)
    parameters = list(family.parameters())
    omega = family(seed)
    torch.testing.assert_close(omega, expected)
    got = torch.autograd.grad(omega, parameters, direction)
    for a, b in zip(got, torch.autograd.grad(expected, parameters, direction)):
        torch.testing.assert_close(a, b)


# --- gradients -----------------------------------------------------------------------------------


def test_gradients_of_a_draw(name):
    family = make(name)
    names = list(dict(family.named_parameters()))
    seed = torch.tensor(7)

    def draw(*values: Tensor) -> Tensor:
        return torch.func.functional_call(family, dict(zip(names, values)), (seed,))

    values = [p.detach().clone().requires_grad_() for p in family.parameters()]
    assert torch.autograd.gradcheck(draw, values)


def test_gradients_of_the_elbo_reach_the_covariance(name):
    layer = LBBNNLinear(
        3, 2, dtype=torch.float64, inclusion=RANDOM[name],
        inclusion_options={"prior_logit_sd": 1.5},
    )
    perturb(layer.inclusion)
    names = list(dict(layer.named_parameters()))
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)

    def loss(*values: Tensor) -> Tensor:
        def call():
            g = torch.Generator().manual_seed(2)
            return fastlbbnn.elbo(layer, x, y, n_data=9, likelihood="gaussian", samples=2, generator=g).loss

        with torch.nn.utils.stateless._reparametrize_module(layer, dict(zip(names, values))):
            return call()

    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(loss, values)
    grads = dict(zip(names, torch.autograd.grad(loss(*values), values)))
    for kind in layer.inclusion.step_groups()["covariance"]:
        (found,) = (n for n, p in layer.named_parameters() if p is kind)
        assert grads[found].abs().max() > 0.0, found


# --- marginal probabilities ----------------------------------------------------------------------


@pytest.mark.parametrize("sd", [0.0, 0.01, 0.3, 1.0, 1.6, 3.0, 7.0, 20.0])
def test_mean_sigmoid_is_the_integral(sd):
    mean = torch.linspace(-30.0, 30.0, 121, dtype=torch.float64)
    z = torch.linspace(-9.0, 9.0, 60_001, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square())
    density /= density.sum()
    exact = torch.sigmoid(mean.unsqueeze(1) + sd * z) @ density
    got = mean_sigmoid(mean, torch.full_like(mean, sd))
    # 2e-7 from the poles (``mean_sigmoid``), 2e-9 beyond the last node.
    assert (got - exact).abs().max() < 2.1e-7
    assert ((got >= 0.0) & (got <= 1.0)).all()


def test_probabilities_are_the_mean_of_drawn_alphas(name):
    family = make(name)
    seeds = functional.draw_seed(torch.Generator().manual_seed(8), "cpu", (1000,))
    with torch.no_grad():
        alpha = torch.stack([torch.sigmoid(family(s)) for s in seeds])
        error = 5 * alpha.std(0) / math.sqrt(len(seeds))
        assert ((alpha.mean(0) - family.probabilities()).abs() < error).all()
    for threshold in (0.2, 0.5, 0.7):
        assert torch.equal(family.chosen(threshold), family.probabilities() > threshold)


@pytest.mark.parametrize("name", ["mvn", "mvn-layer", "rank-2"])
def test_indicators_correlate_as_drawn_ones(name):
    family = make(name, 2, 4)
    draws = 4000
    got = family.indicator_correlation(1, draws=draws, generator=torch.Generator().manual_seed(1))
    seeds = functional.draw_seed(torch.Generator().manual_seed(8), "cpu", (draws,))
    with torch.no_grad():
        alpha = torch.stack([torch.sigmoid(family(s)[1]) for s in seeds])
    gamma = torch.bernoulli(alpha, generator=torch.Generator().manual_seed(2))
    # Each has a standard error of at most draws ** -0.5.
    assert (got - torch.corrcoef(gamma.T)).abs().max() < 4 * math.sqrt(2 / draws)


# --- the extra KL --------------------------------------------------------------------------------


def test_the_kl_of_the_logits_is_that_of_two_normals(name):
    family = make(name, prior_logit_sd=1.7)
    joint = torch.distributions.MultivariateNormal
    xi = family.xi.detach().flatten()
    prior = joint(xi, 1.7**2 * torch.eye(xi.numel(), dtype=torch.float64))
    expected = torch.distributions.kl_divergence(joint(xi, joint_covariance(family)), prior)
    torch.testing.assert_close(family.kl(), expected)
    fixed = make(name, prior_logit_sd=1.7, prior_logit_mean=-1.0)
    prior = joint(torch.full_like(xi, -1.0), prior.covariance_matrix)
    expected = torch.distributions.kl_divergence(joint(xi, joint_covariance(fixed)), prior)
    torch.testing.assert_close(fixed.kl(), expected)
    assert make(name).kl() is None


def test_kl_draws_and_averages_to_the_expected_kl(name):
    """Of one layer, over draws of omega; and above the KL at the mean probabilities (Jensen)."""
    layer = LBBNNLinear(COLS, ROWS, dtype=torch.float64, inclusion=RANDOM[name])
    perturb(layer.inclusion)
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([layer.kl() for _ in range(300)])
        alpha = layer.inclusion_probabilities()
        marginal = reference.kl_sums(
            layer.kappa, layer.rho, torch.logit(alpha), layer.bias_kappa, layer.bias_rho
        )
    assert draws.std() > 0.0
    assert draws.mean() > layer.prior.kl(marginal, layer.blocks())


def test_the_objective_adds_the_kl_of_the_logits(name):
    options = {"prior_logit_sd": 0.5}
    torch.manual_seed(0)
    model = MLP(6, 4, 3, inclusion=RANDOM[name], inclusion_options=options)
    perturb(model)
    extra = sum(layer.inclusion.kl() for layer in (model[0], model[2]))
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    plain = copy.deepcopy(model)
    for layer in (plain[0], plain[2]):
        layer.inclusion.prior_logit_sd = None
    for network in (nn.Sequential(*model), model):
        for samples in (1, 3):
            got, without = (
                fastlbbnn.elbo(
                    m, x, y, n_data=50, samples=samples, generator=torch.Generator().manual_seed(1)
                )
                for m in (network, plain)
            )
            torch.testing.assert_close(got.kl - without.kl, extra, rtol=1e-5, atol=1e-4)
    torch.manual_seed(4)
    total = fastlbbnn.kl(model)
    torch.manual_seed(4)
    torch.testing.assert_close(total - fastlbbnn.kl(plain), extra, rtol=1e-5, atol=1e-4)
    # A decided model has no random logits, and so none of their KL.
    got, without = (fastlbbnn.elbo(m, x, y, n_data=50, mode="median") for m in (model, plain))
    torch.testing.assert_close(got.kl, without.kl)


# --- layers --------------------------------------------------------------------------------------


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
            loss = fastlbbnn.elbo(model, x, y, n_data=100, samples=1 + i % 2, generator=g).loss
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
            loss = fastlbbnn.elbo(m, x, y, n_data=100, samples=samples, generator=g).loss
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
        # While tracing, marginal probabilities take the nodes of a wide spread: 2e-7 (``mean_sigmoid``).
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
