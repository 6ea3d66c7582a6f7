"""Layers with random input scales: horseshoe and normal-Jeffreys, their KLs and their pruning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, HalfCauchy, InverseGamma, LogNormal, Normal, kl_divergence

import fastlbbnn
from fastlbbnn import reference
from fastlbbnn.inference.optim import param_groups
from fastlbbnn.nn import MLP, HorseshoeLinear, NormalJeffreysLinear, expand_samples, weights
from fastlbbnn.nn.baselines.horseshoe import lognormal_kl

LAYERS = [HorseshoeLinear, NormalJeffreysLinear]
each_layer = pytest.mark.parametrize("layer", LAYERS)
F64 = torch.float64


def gauss_hermite(count: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights for expectations under N(0, 1)."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(count)
    return torch.from_numpy(nodes), torch.from_numpy(shares / shares.sum())


@pytest.mark.parametrize("mu", [-3.0, 0.0, 1.5])
@pytest.mark.parametrize("deviation", [0.05, 0.7, 1.4])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_the_divergence_of_lognormals_is_exact(mu, deviation, scale):
    """Against Gauss-Hermite quadrature of torch.distributions' log q - log p, for exp() exact to 1e-12."""
    nodes, shares = gauss_hermite()
    rho = torch.tensor(math.log(math.expm1(deviation)), dtype=F64)
    q = LogNormal(torch.tensor(mu, dtype=F64), deviation)
    x = torch.exp(mu + deviation * nodes)
    half, one = torch.tensor(0.5, dtype=F64), torch.tensor(1.0, dtype=F64)
    for p, sign, log_scale in (
        (Gamma(half, one / scale), 1.0, math.log(scale)), (InverseGamma(half, one), -1.0, 0.0)
    ):
        expected = (shares * (q.log_prob(x) - p.log_prob(x))).sum()
        got = lognormal_kl(torch.tensor(mu, dtype=F64), rho, torch.tensor(sign, dtype=F64), log_scale)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_half_cauchy_is_the_root_of_a_gamma_times_an_inverse_gamma(scale):
    """Kolmogorov and Smirnov's distance of n draws, whose 99.9 % quantile is 1.95/sqrt(n)."""
    torch.manual_seed(0)
    n = 20_000
    a = Gamma(torch.tensor(0.5, dtype=F64), 1.0 / scale**2).sample((n,))
    b = InverseGamma(torch.tensor(0.5, dtype=F64), torch.tensor(1.0, dtype=F64)).sample((n,))
    expected = HalfCauchy(torch.tensor(scale, dtype=F64)).cdf((a * b).sqrt().sort().values)
    empirical = torch.arange(1, n + 1, dtype=F64) / n
    assert (expected - empirical).abs().max() < 1.95 / math.sqrt(n)


@pytest.mark.parametrize("sigma2", [1.0, 0.3])
def test_the_horseshoes_kl_is_the_sum_of_its_parts(sigma2):
    torch.manual_seed(0)
    layer = HorseshoeLinear(6, 4, sigma2=sigma2, global_scale=0.01, dtype=F64)
    nodes, shares = gauss_hermite()
    expected = gaussian_kl(layer, sigma2)
    half, one = torch.tensor(0.5, dtype=F64), torch.tensor(1.0, dtype=F64)
    for kappa, rho, scale in (
        (layer.global_kappa, layer.global_rho, 0.01), (layer.local_kappa, layer.local_rho, 1.0)
    ):
        for row, p in enumerate((Gamma(half, one / scale**2), InverseGamma(half, one))):
            q = LogNormal(kappa[row].unsqueeze(-1), reference.softplus(rho[row]).unsqueeze(-1))
            x = torch.exp(q.loc + q.scale * nodes)
            expected = expected + (shares * (q.log_prob(x) - p.log_prob(x))).sum()
    torch.testing.assert_close(layer.kl(), expected, rtol=1e-9, atol=1e-9)


def gaussian_kl(layer, sigma2: float) -> torch.Tensor:
    prior = Normal(torch.zeros((), dtype=F64), math.sqrt(sigma2))
    parts = ((layer.kappa, layer.rho), (layer.bias_kappa, layer.bias_rho))
    return sum(kl_divergence(Normal(m, reference.softplus(r)), prior).sum() for m, r in parts)


def test_nothing_known_is_where_the_kl_of_a_scale_is_smallest():
    """Its minimum has mean 0 and variance 1 of log l, which is what the pruning rule calls uncertain."""
    layer = HorseshoeLinear(1, 1, bias=False, dtype=F64)
    scales = [layer.local_kappa, layer.local_rho]
    optimizer = torch.optim.LBFGS(scales, max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure():
        optimizer.zero_grad()
        loss = layer.scale_kl()
        loss.backward()
        return loss

    optimizer.step(closure)
    mean = 0.5 * layer.local_kappa.sum()
    variance = 0.25 * reference.softplus(layer.local_rho).square().sum()
    torch.testing.assert_close(mean.item(), 0.0, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(variance.item(), 1.0, rtol=1e-4, atol=0.0)
    assert not layer.kept_inputs().any()


def exact_jeffreys_kl(log_alpha: torch.Tensor) -> torch.Tensor:
    """KL of N(1, alpha) from 1/|z|, with the constant that makes it vanish as alpha grows.

    E log|z| is that of a noncentral chi-square variable, a Poisson mixture of digamma functions: with
    j ~ Poisson(1/(2 alpha)), KL = (E[digamma(1/2 + j)] - digamma(1/2))/2.
    """
    j = torch.arange(4000, dtype=F64)
    rate = (0.5 * torch.exp(-log_alpha)).unsqueeze(-1)
    log_poisson = j * rate.log() - rate - torch.lgamma(j + 1.0)
    expected = (log_poisson.exp() * torch.digamma(j + 0.5)).sum(-1)
    return 0.5 * (expected - torch.digamma(torch.tensor(0.5, dtype=F64)))


def test_the_fit_of_the_jeffreys_divergence_is_close():
    layer = NormalJeffreysLinear(161, 1, bias=False, dtype=F64)
    log_alpha = torch.linspace(-7.0, 9.0, 161, dtype=F64)
    with torch.no_grad():
        layer.scale_kappa.fill_(100.0)  # the 1e-8 that guards log(0) is then below rounding
        layer.scale_rho.copy_(torch.log(torch.expm1(100.0 * torch.exp(0.5 * log_alpha))))
        layer.scale_rho.copy_(torch.where(layer.scale_rho.isinf(), 100.0 * torch.exp(0.5 * log_alpha),
                                          layer.scale_rho))
    torch.testing.assert_close(layer.log_alpha(), log_alpha, rtol=0.0, atol=1e-6)
    each = torch.stack([single_scale_kl(layer, k) for k in range(161)])
    # The published fit's own error, 0.0094, largest near log alpha = -3.5, where the KL is 2.4.
    assert (each - exact_jeffreys_kl(log_alpha)).abs().max() < 0.01
    torch.testing.assert_close(layer.scale_kl(), each.sum())
    torch.testing.assert_close(layer.kl() - layer.scale_kl(), weights_kl(layer))


def single_scale_kl(layer: NormalJeffreysLinear, k: int) -> torch.Tensor:
    one = NormalJeffreysLinear(1, 1, bias=False, dtype=F64)
    with torch.no_grad():
        one.scale_kappa.copy_(layer.scale_kappa[k])
        one.scale_rho.copy_(layer.scale_rho[k])
    return one.scale_kl().detach()


def weights_kl(layer) -> torch.Tensor:
    prior = Normal(torch.zeros((), dtype=F64), 1.0)
    return kl_divergence(Normal(layer.kappa, reference.softplus(layer.rho)), prior).sum()


def make_uncertain(layer, inputs: list[int]) -> None:
    """Scales of these inputs become as uncertain as their prior."""
    with torch.no_grad():
        if isinstance(layer, HorseshoeLinear):
            layer.local_rho[:, inputs] = 1.2
        else:
            layer.scale_rho[inputs] = 1.2


@each_layer
@pytest.mark.parametrize("mode", ["median", "median-mean"])
def test_pruned_inputs_change_no_output_and_the_others_do(layer, mode):
    torch.manual_seed(0)
    module = layer(6, 5)
    make_uncertain(module, [1, 4])
    assert module.kept_inputs().tolist() == [True, False, True, True, False, True]
    assert module.density(mode) == pytest.approx(4 / 6)
    assert module.density("sampled") == module.density("mean") == 1.0
    x = torch.randn(3, 6)

    def outputs(x, mode=mode):
        with weights(mode, generator=torch.Generator().manual_seed(1)):
            return module(x)

    masked = x * module.kept_inputs()
    assert torch.equal(outputs(x), outputs(masked))
    # The pruned pass is the full one with these inputs at zero: the same draws.
    full = "sampled" if mode == "median" else "mean"
    torch.testing.assert_close(outputs(x), outputs(masked, full), rtol=1e-6, atol=1e-6)
    for k in range(6):
        changed = x.clone()
        changed[:, k] += 1.0
        assert torch.equal(outputs(changed), outputs(x)) is (k in (1, 4))


@each_layer
def test_the_threshold_is_the_layers_or_the_callers(layer):
    module = layer(6, 5, threshold=-math.inf)
    assert not module.kept_inputs().any()
    assert module.kept_inputs(math.inf).all()
    assert module.density("median", 0.0) == 0.0
    with weights("median-mean"):
        expected = module.bias_kappa.expand(2, 5)
        assert torch.equal(module(torch.randn(2, 6)), expected)


@each_layer
def test_log_alpha_is_the_squared_coefficient_of_variation(layer):
    """Of scales that are drawn; 4 standard errors of a variance, with a kurtosis below 9."""
    torch.manual_seed(0)
    module, draws = layer(3, 2), 40_000
    with torch.no_grad():
        if layer is HorseshoeLinear:
            module.local_rho.fill_(-0.5)
            module.global_rho.fill_(-200.0)  # the rule looks at the inputs' own scales
        else:
            module.scale_rho.fill_(-1.0)
        z = module.sample_scales(torch.tensor(5), draws, 1)[:, 0].double()
    alpha = z.var(0) / z.mean(0).square()
    expected = module.log_alpha().detach().exp().double()
    assert ((alpha / expected - 1.0).abs() < 4.0 * math.sqrt(8.0 / draws) + 0.02).all()
    mean = module.mean_scales().detach().double()
    assert ((z.mean(0) - mean).abs() < 4.0 * z.std(0) / math.sqrt(draws)).all()


def test_a_horseshoes_inputs_share_the_global_scale():
    layer = HorseshoeLinear(4, 1)
    with torch.no_grad():
        layer.local_rho.fill_(-200.0)
        layer.global_rho.fill_(1.0)
        z = layer.sample_scales(torch.tensor(3), 5, 7).log()  # [samples, rows, inputs]
    torch.testing.assert_close(z, z[..., :1].expand_as(z))
    assert len(z[..., 0].unique()) == 35
    mean, variance = layer.log_scale_moments()
    assert (z[..., 0] - mean[0]).abs().max() < 6.0 * variance[0].sqrt()


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_a_new_horseshoe_starts_at_scales_near_one(scale):
    layer = HorseshoeLinear(50, 10, global_scale=scale)
    # Variance of log z: two of the layer's variables and two of the input's, each 0.01 by a quarter.
    torch.testing.assert_close(layer.mean_scales(), torch.full((50,), math.exp(0.005)), rtol=1e-3, atol=0.0)
    assert layer.kept_inputs().all()


@each_layer
def test_useless_inputs_are_found_by_training(layer):
    """Three of eight inputs matter; the others carry noise."""
    torch.manual_seed(0)
    x = torch.randn(500, 8)
    signal = x[:, 0] - 0.7 * x[:, 3] + 0.5 * x[:, 6]
    y = (signal + 0.3 * torch.randn(500)).unsqueeze(-1) / 0.3  # unit noise
    model = MLP(8, 1, layer=layer)
    optimizer = fastlbbnn.Adam(param_groups(model, weights=3e-2, scales=3e-2))
    for _ in range(600):
        optimizer.backward_step(fastlbbnn.elbo(model, x, y, n_data=500, likelihood="gaussian").loss)
    assert model[0].kept_inputs().nonzero().flatten().tolist() == [0, 3, 6]
    assert fastlbbnn.density(model, "median") == 3 / 8
    with weights("median-mean"):
        residual = (model(x) - y).var().item()
    assert residual < 1.3  # of the noise's 1
    with weights("median", samples=20):
        assert (model(expand_samples(x, 20)).mean(0) - y).var().item() < 1.4


@each_layer
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"threshold": math.nan}, "threshold=nan"),
        ({"sigma2": 0.0}, "sigma2=0.0"),
        ({"sigma2": -1.0}, "sigma2=-1.0"),
    ],
)
def test_bad_arguments_are_named(layer, kwargs, message):
    with pytest.raises(ValueError, match=message):
        layer(2, 2, **kwargs)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf])
def test_a_bad_global_scale_is_named(scale):
    with pytest.raises(ValueError, match=f"global_scale={scale}"):
        HorseshoeLinear(2, 2, global_scale=scale)
