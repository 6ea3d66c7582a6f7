"""The learned dispersion: closed forms against draws, exact evidence, and a known noise recovered."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

import fastlbbnn
from fastlbbnn import GaussianDispersion, elbo
from fastlbbnn.nn import MLP, LBBNNLinear
from fastlbbnn.prediction.predict import log_prob_draws


def dispersion(outputs: int = 1, a=(3.0, 5.0), b=(2.0, 0.7), **kwargs) -> GaussianDispersion:
    """q = Inv-Gamma(a, b), in float64."""
    noise = GaussianDispersion(outputs, dtype=torch.float64, **kwargs)
    a, b = (torch.tensor(v[:outputs], dtype=torch.float64) for v in (a, b))
    noise.log_shape.data, noise.log_variance.data = a.log(), (b / a).log()
    return noise


def test_expectations_and_kl_are_those_of_draws():
    noise = dispersion(2, prior=(1.5, 0.8))
    n = 200_000
    phi = noise.draw(n, torch.Generator().manual_seed(0)).variance(torch.zeros(n, 1, 2))[:, 0].double()
    a, b = (t.detach() for t in noise.posterior())
    log_q = torch.from_numpy(stats.invgamma.logpdf(phi, a.numpy(), scale=b.numpy()))
    log_p = torch.from_numpy(stats.invgamma.logpdf(phi, 1.5, scale=0.8))
    log_phi, precision = (t.detach() for t in noise.expectations())
    divergence = noise.kl().detach()
    for drawn, exact in ((phi.log(), log_phi), (1 / phi, precision), ((log_q - log_p).sum(1), divergence)):
        error = drawn.std(0) / math.sqrt(n)
        assert ((drawn.mean(0) - exact).abs() < 4.5 * error).all()


def test_the_kl_is_zero_only_at_the_prior():
    noise = dispersion(2, a=(1.5, 1.5), b=(0.8, 0.8), prior=(1.5, 0.8))
    assert noise.kl().item() == pytest.approx(0.0, abs=1e-14)
    noise.log_shape.data += 0.1
    assert noise.kl().item() > 1e-3


def test_the_expected_log_likelihood_is_the_mean_over_the_posterior():
    noise = dispersion(2)
    g = torch.Generator().manual_seed(1)
    f, y = torch.randn(4, 2, dtype=torch.float64, generator=g), torch.zeros(4, 2, dtype=torch.float64)
    n = 100_000
    phi = noise.draw(n, g).variance(torch.zeros(n, 1, 2)).double()
    drawn = torch.distributions.Normal(f, phi.sqrt()).log_prob(y)
    error = drawn.std(0) / math.sqrt(n)
    assert ((drawn.mean(0) - noise.values_log_prob(f, y).detach()).abs() < 4.5 * error).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_an_update_with_all_data_is_the_optimum_of_the_bound(outputs):
    g = torch.Generator().manual_seed(4)
    n, draws = 30, 3
    output = torch.randn(draws, n, 2, dtype=torch.float64, generator=g)
    target = torch.randn(n, 2, dtype=torch.float64, generator=g)
    # One variance is shared by all 60 values, two by 30 each.
    noise = GaussianDispersion(outputs, n_values=2 * n // outputs, prior=(1.5, 0.8), dtype=torch.float64)
    noise.update(output, target)
    loss = noise.kl() - noise(output, target).sum() / draws
    slopes = torch.autograd.grad(loss, list(noise.parameters()))
    for slope in slopes:
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0.0, atol=1e-10)
    # Steps smaller than 1 come closer by that share.
    best = noise.posterior()[1].detach()
    with torch.no_grad():
        noise.log_variance.add_(1.0)
    before = noise.posterior()[1].detach()
    noise.update(output, target, step=0.25)
    torch.testing.assert_close(noise.posterior()[1].detach(), 0.75 * before + 0.25 * best)
    with pytest.raises(ValueError, match="step=0"):
        noise.update(output, target, step=0.0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_are_exact(outputs):
    noise = dispersion(outputs)
    f = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(5, 2, dtype=torch.float64)

    def bound(log_variance, log_shape, output):
        held = GaussianDispersion(outputs, dtype=torch.float64)
        parameters = {"log_variance": log_variance, "log_shape": log_shape}
        value = torch.func.functional_call(held, parameters, (output, y)).sum()
        # kl() is a method: through the same parameters.
        held.__dict__["_parameters"] = parameters
        return value - held.kl() + held.log_prob(output, y).sum()

    assert torch.autograd.gradcheck(bound, (noise.log_variance, noise.log_shape, f))


def test_the_predictive_density_is_students_t():
    f = torch.tensor([[0.3, -1.0], [2.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 0.0], [0.5, 0.1]], dtype=torch.float64)
    each = dispersion(2)
    a, b = (t.detach().numpy() for t in each.posterior())
    expected = stats.t.logpdf(y, 2 * a, f, (b / a) ** 0.5).sum(1)
    torch.testing.assert_close(each.log_prob(f, y).detach(), torch.from_numpy(expected))
    # Two outputs that share a variance depend on each other.
    shared = dispersion(1)
    a, b = (t.item() for t in shared.posterior())
    expected = [
        stats.multivariate_t.logpdf(y[i], f[i], b / a * torch.eye(2).numpy(), df=2 * a) for i in range(2)
    ]
    torch.testing.assert_close(shared.log_prob(f, y).detach(), torch.tensor(expected, dtype=torch.float64))


def test_draws_of_the_log_probability_average_to_the_predictive_density():
    noise = dispersion(1)
    layer = fastlbbnn.nn.GaussianLinear(1, 1, bias=False)
    layer.kappa.data.zero_()
    layer.rho.data.fill_(-40.0)  # a standard deviation of 4e-18
    x, y = torch.ones(3, 1), torch.tensor([0.0, 0.7, -2.0])
    n = 20_000
    drawn = log_prob_draws(layer, x, y, samples=n, likelihood=noise, batch_size=2)
    density = noise.log_prob(torch.zeros(3, 1), y).detach().exp()
    error = drawn.exp().std(0) / math.sqrt(n)
    assert ((drawn.exp().mean(0) - density).abs() < 4.5 * error).all()
    # Without draws, the point estimate.
    plugged = log_prob_draws(layer, x, y, mode="mean", likelihood=noise)[0]
    expected = torch.distributions.Normal(0.0, noise.point_variance().detach().float().sqrt()).log_prob(y)
    torch.testing.assert_close(plugged, expected)


def test_the_predictive_density_is_accurate_for_a_certain_variance():
    """With a = 10^6 it is the normal density but for a term of order 1/a, in float32 too."""
    noise = GaussianDispersion(n_values=2_000_000, variance=0.25)
    y = torch.tensor([0.0, 0.5, -1.5])
    expected = torch.distributions.Normal(0.0, 0.5).log_prob(y)
    torch.testing.assert_close(noise.log_prob(torch.zeros(3, 1), y).detach(), expected, rtol=1e-5, atol=0.0)


def test_at_its_best_the_bound_is_the_exact_evidence():
    """Given the means, the posterior of phi is an inverse gamma, which q can be."""
    g = torch.Generator().manual_seed(0)
    f = torch.randn(30, 1, dtype=torch.float64, generator=g)
    y = f + 0.4 * torch.randn(30, 1, dtype=torch.float64, generator=g)
    a0, b0 = 1.0, 0.01
    noise = dispersion(1, a=(a0 + 15,), b=(b0 + (y - f).square().sum().item() / 2,))
    bound = noise(f, y).sum() - noise.kl()
    # All thirty values as one observation, under the prior.
    evidence = dispersion(1, a=(a0,), b=(b0,)).log_prob(f.T, y.T).item()
    assert bound.item() == pytest.approx(evidence, rel=1e-12)
    bound.backward()
    assert noise.log_shape.grad.abs().max() < 1e-10
    assert noise.log_variance.grad.abs().max() < 1e-10


def test_the_known_shape_is_where_the_gradient_vanishes_whatever_the_residuals():
    noise = GaussianDispersion(n_values=24, prior=(2.0, 0.3), variance=0.1, dtype=torch.float64)
    f, y = torch.randn(12, 2, dtype=torch.float64), torch.zeros(12, 2, dtype=torch.float64)
    (noise(f, y).sum() - noise.kl()).backward()
    assert noise.log_shape.grad.abs().item() < 1e-10
    assert noise.log_variance.grad.abs().item() > 0.1


def test_moments_and_responses():
    noise = dispersion(2)
    a, b = noise.posterior()
    torch.testing.assert_close(noise.variance(torch.zeros(3, 2, dtype=torch.float64))[0], b / (a - 1))
    torch.testing.assert_close(noise.point_variance(), b / a)
    assert noise.variance(torch.zeros(3, 2))[0].dtype is torch.float32
    assert math.isinf(dispersion(1, a=(0.9,)).variance(torch.zeros(1, 1)).item())
    n = 50_000
    drawn = noise.sample(torch.zeros(n, 1, 2, dtype=torch.float64), torch.Generator().manual_seed(0))
    # The fourth moment is infinite for a <= 2; a = 3 and 5 have one: 3 b^2 / ((a-1)(a-2)).
    variance = b / (a - 1)
    error = ((3 * b**2 / ((a - 1) * (a - 2)) - variance**2) / n).sqrt()
    assert ((drawn.square().mean(0)[0] - variance).abs() < 5 * error).all()
    plugged = noise.plug_in().variance(torch.zeros(1, 2, dtype=torch.float64))[0]
    torch.testing.assert_close(plugged, (b / a).detach())


def test_an_unknown_shape_is_learned():
    g = torch.Generator().manual_seed(0)
    f, y = torch.zeros(50, 1, dtype=torch.float64), torch.randn(50, 1, dtype=torch.float64, generator=g)
    noise = GaussianDispersion(prior=(2.0, 0.3), dtype=torch.float64)
    optimizer = torch.optim.LBFGS(noise.parameters(), max_iter=200, tolerance_change=1e-14)

    def loss():
        optimizer.zero_grad()
        value = noise.kl() - noise(f, y).sum()
        value.backward()
        return value

    optimizer.step(loss)
    a, b = noise.posterior()
    assert a.item() == pytest.approx(2.0 + 25.0, rel=1e-4)
    assert b.item() == pytest.approx(0.3 + y.square().sum().item() / 2, rel=1e-4)


def test_a_known_noise_is_recovered_and_its_kl_is_in_the_bound():
    """y = sin(2 x) + N(0, 0.3^2), 400 of them."""
    torch.manual_seed(0)
    sd, n = 0.3, 400
    x = torch.linspace(-2.0, 2.0, n)[:, None]
    y = torch.sin(2.0 * x) + sd * torch.randn(n, 1)
    model = MLP(1, 30, 1, prior=fastlbbnn.FixedPrior(psi=0.5, sigma2=1.0))
    noise = GaussianDispersion(n_values=n)
    both = nn.ModuleList([model, noise])
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(both, weights=2e-2, inclusion=2e-2))
    for _ in range(800):
        optimizer.backward_step(elbo(model, x, y, n_data=n, likelihood=noise, samples=4).loss)
    bound = elbo(model, x, y, n_data=n, likelihood=noise)
    torch.testing.assert_close(bound.kl, fastlbbnn.kl(model) + noise.kl(), rtol=1e-5, atol=0.0)
    # 400 residuals determine a standard deviation to 1/sqrt(800) = 3.5 % a sigma; what the network cannot
    # explain adds to it: another 10 % for one with thirty hidden units and noisy weights.
    learned = noise.point_variance().sqrt().item()
    assert sd * (1 - 4 * 0.035) < learned < sd * (1.1 + 4 * 0.035)
    assert noise.posterior()[0].item() == pytest.approx(1.0 + n / 2, rel=1e-4)
    # New observations fall into their 90 % intervals 90 % of the time, give or take 3 % (four standard
    # deviations of 2,000) and the 10 % above, which a normal interval passes on as 3 %.
    i = fastlbbnn.predict_interval(model, x, of="response", level=0.9, likelihood=noise)
    new = torch.sin(2.0 * x) + sd * torch.randn(5, n, 1)
    covered = ((new >= i.lower) & (new <= i.upper)).float().mean().item()
    assert 0.84 < covered < 0.96


def test_a_variance_for_every_output():
    torch.manual_seed(0)
    x = torch.randn(500, 3)
    sds = torch.tensor([0.1, 1.0])
    y = x @ torch.randn(3, 2) + sds * torch.randn(500, 2)
    layer, noise = LBBNNLinear(3, 2, estimator="local"), GaussianDispersion(2, n_values=500)
    optimizer = torch.optim.Adam([*layer.parameters(), *noise.parameters()], lr=2e-2)
    for _ in range(600):
        optimizer.zero_grad()
        elbo(layer, x, y, n_data=500, likelihood=noise, samples=2).loss.backward()
        optimizer.step()
    # Four standard deviations of 1/sqrt(1000), and 5 % for weights that are drawn.
    ratio = noise.point_variance().sqrt() / sds
    assert ((ratio - 1).abs() < 0.05 + 4 * 0.032).all()


def test_it_is_saved_and_loaded_with_its_posterior():
    noise, other = dispersion(2), GaussianDispersion(2, dtype=torch.float64)
    other.load_state_dict(noise.state_dict())
    assert torch.equal(other.kl(), noise.kl())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianDispersion(0), "outputs=0"),
        (lambda: GaussianDispersion(prior=(1.0, 0.0)), r"prior=\(1.0, 0.0\)"),
        (lambda: GaussianDispersion(variance=-1.0), "variance=-1.0"),
        (lambda: GaussianDispersion(n_values=0), "n_values=0"),
        (lambda: GaussianDispersion(2)(torch.ones(4, 3), torch.ones(4, 3)), "expected a last axis of 2"),
        (lambda: GaussianDispersion()(torch.ones(3, 3), torch.ones(3)), r"target \[3\]"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
