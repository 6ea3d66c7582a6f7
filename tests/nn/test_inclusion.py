"""The structure families of the indicators: draws, gradients, moments and their KL."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support.random_logits import COLS, RANDOM, ROWS, joint_covariance, make, perturb
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn import ops, reference
from fastlbbnn.nn import MLP, MVN, LBBNNLinear
from fastlbbnn.nn.inclusion.random import mean_sigmoid


@pytest.fixture(params=list(RANDOM))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


# --- draws ---------------------------------------------------------------------------------------


def test_draws_have_the_stated_mean_and_covariance(name):
    family = make(name)
    draws = 4000
    seeds = ops.draw_seed(torch.Generator().manual_seed(5), "cpu", (draws,))
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
    z = ops.noise.logit_noise(seed, 3, 70)
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
    z = ops.noise.logit_noise(seed, rows, cols).double()
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


@pytest.mark.parametrize("sd", [0.0, 0.01, 0.3, 1.0, 1.6, 3.0, 4.0, 4.01, 7.0, 20.0, 300.0])
def test_mean_sigmoid_is_the_integral(sd):
    mean = torch.linspace(-30.0, 30.0, 121, dtype=torch.float64)
    z = torch.linspace(-9.0, 9.0, 60_001, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square())
    density /= density.sum()
    exact = torch.sigmoid(mean.unsqueeze(1) + sd * z) @ density
    got = mean_sigmoid(mean, torch.full_like(mean, sd))
    # 2e-7 from the poles (``mean_sigmoid``), 2e-9 beyond the last node; 4e-8 and 3e-8 from sd = 4 on.
    assert (got - exact).abs().max() < 2.1e-7
    assert ((got >= 0.0) & (got <= 1.0)).all()


def test_logits_of_any_spread_have_marginal_probabilities():
    # Nodes in proportion to the largest sd would not fit into any memory. The spread of the sigmoid itself
    # adds terms of the order 1 / sd^2 to Phi(mean / sd), here 1e-16.
    mean = torch.tensor([-3e8, 1e7, 0.0, 2e8, 5.0, -0.4], dtype=torch.float64)
    sd = torch.tensor([1e8, 1e9, 1e12, 1e15, 6.0, 0.7], dtype=torch.float64)
    got = mean_sigmoid(mean, sd)
    assert (got[:4] - torch.special.ndtr(mean / sd)[:4]).abs().max() < 2.1e-7
    alone = torch.stack([mean_sigmoid(m, s) for m, s in zip(mean, sd)])
    assert (got - alone).abs().max() < 2.1e-7


def test_marginal_probabilities_of_mixed_spreads_have_gradients():
    mean = torch.tensor([0.3, -5.0, 2.0], dtype=torch.float64, requires_grad=True)
    sd = torch.tensor([0.5, 9.0, 1e3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mean_sigmoid, (mean, sd))


@pytest.mark.parametrize("sd", [0.3, 3.0, 8.0, 13.0, 20.0])
def test_rounding_leaves_probabilities(sd):
    mean = torch.linspace(-200.0, 200.0, 4001)
    got = mean_sigmoid(mean, torch.full_like(mean, sd))
    assert ((got >= 0.0) & (got <= 1.0)).all()


def test_probabilities_are_the_mean_of_drawn_alphas(name):
    family = make(name)
    seeds = ops.draw_seed(torch.Generator().manual_seed(8), "cpu", (1000,))
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
    seeds = ops.draw_seed(torch.Generator().manual_seed(8), "cpu", (draws,))
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


@pytest.mark.parametrize(("rows", "cols"), [(3, 5), (40, 300)])
def test_the_kl_of_the_logits_has_the_gradients_of_its_formula(name, rows, cols):
    """Also where the triangular factor takes several blocks, and with rubbish above its diagonal."""
    if name == "mvn-layer":
        rows = 1
    if name == "mvn-by-row" and cols > 5:
        rows = 2
    family = RANDOM[name](rows, cols, prior_logit_sd=1.3, dtype=torch.float64)
    # Large random triangular matrices have no usable determinant: smaller entries there.
    perturb(family, 4, 0.5 if cols == 5 else 0.02)
    parameters = [p for p in family.parameters() if p is not family.xi]
    got = torch.autograd.grad(family.kl(), parameters)
    sigma = family.covariance()
    copies = rows if sigma.dim() == 2 and sigma.shape[-1] == cols else 1
    trace = sigma.diagonal(dim1=-2, dim2=-1).sum()
    value = 0.5 * copies * (trace / 1.3**2 - torch.logdet(sigma).sum())
    for ours, formula in zip(got, torch.autograd.grad(value, parameters)):
        torch.testing.assert_close(ours, formula)


def test_kl_draws_and_averages_to_the_expected_kl(name):
    """The KL of one layer, over draws of omega; and it is above the KL at the mean probabilities (Jensen)."""
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
                    m, x, y, n_data=50, samples=samples, generator=torch.Generator().manual_seed(1),
                    likelihood="categorical"
                )
                for m in (network, plain)
            )
            torch.testing.assert_close(got.kl - without.kl, extra, rtol=1e-5, atol=1e-4)
    torch.manual_seed(4)
    total = fastlbbnn.kl(model)
    torch.manual_seed(4)
    torch.testing.assert_close(total - fastlbbnn.kl(plain), extra, rtol=1e-5, atol=1e-4)
    # A decided model has no random logits, and so none of their KL.
    got, without = (fastlbbnn.elbo(
        m, x, y, n_data=50, mode="median", likelihood="categorical"
    ) for m in (model, plain))
    torch.testing.assert_close(got.kl, without.kl)
