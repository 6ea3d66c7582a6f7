"""The evidence lower bound: its value, its scale, and that it is a bound."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import fastlbbnn
from fastlbbnn import ConjugatePrior, FixedPrior, elbo, kl, reference, set_likelihood
from fastlbbnn.inference import likelihoods
from fastlbbnn.inference.families import Gaussian
from fastlbbnn.nn import GaussianLinear, LBBNNLinear


def make_model(**kwargs) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(LBBNNLinear(6, 5, **kwargs), nn.ReLU(), GaussianLinear(5, 3))
    return set_likelihood(model, "categorical")


X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def test_the_parts_add_up():
    model = make_model()
    bound = elbo(model, X, Y, n_data=100)
    n, m = 100, 8
    torch.testing.assert_close(bound.loss, bound.kl * m / n - bound.log_likelihood)
    torch.testing.assert_close(bound.value, bound.log_likelihood * n / m - bound.kl)
    torch.testing.assert_close(bound.value, -bound.loss * n / m)
    assert "ELBO(value=" in repr(bound)


@pytest.mark.parametrize("prior", [FixedPrior(0.3, 0.5), ConjugatePrior()])
def test_the_kl_met_on_the_way_is_the_stateless_one(prior):
    model = make_model(prior=prior)
    bound = elbo(model, X, Y, n_data=100)
    torch.testing.assert_close(bound.kl, kl(model), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(kl(model), model[0].kl() + model[2].kl(), rtol=1e-6, atol=0.0)
    assert torch.equal(kl(model), kl(model))


def test_a_layer_used_twice_has_one_kl():
    layer = LBBNNLinear(6, 6)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    torch.testing.assert_close(elbo(model, X, X, n_data=8, likelihood="gaussian").kl, layer.kl())


def test_a_model_in_eval_mode_has_its_kl_too():
    model = make_model().eval()
    torch.testing.assert_close(elbo(model, X, Y, n_data=8).kl, kl(model), rtol=1e-6, atol=0.0)


def test_samples_average_the_log_likelihood():
    model = make_model()
    g = lambda: torch.Generator().manual_seed(4)  # noqa: E731
    many = elbo(model, X, Y, n_data=8, samples=5, generator=g())
    with fastlbbnn.weights(samples=5, generator=g()):
        logits = model(fastlbbnn.expand_samples(X, 5))
    expected = logits.log_softmax(-1)[:, torch.arange(8), Y].sum(1).mean()
    torch.testing.assert_close(many.log_likelihood, expected)


def test_the_sampled_kl_is_an_estimate_of_the_closed_one():
    model = make_model(temperature=0.01)
    closed = kl(model).item()
    draws = torch.stack(
        [elbo(model, X, Y, n_data=8, kl="sampled", mode="sampled").kl.detach() for _ in range(600)]
    )
    assert abs(draws.mean().item() - closed) < 4 * draws.std().item() / math.sqrt(600)


@pytest.mark.parametrize("kl_form", ["closed", "sampled"])
def test_gradients_reach_every_parameter(kl_form):
    model = make_model(estimator="concrete")
    elbo(model, X, Y, n_data=8, samples=2, kl=kl_form).loss.backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "output", "target", "distribution"),
    [
        ("categorical", torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0]),
         lambda o: torch.distributions.Categorical(logits=o)),
        ("bernoulli", torch.randn(5, 1), torch.tensor([0.0, 1, 1, 0, 1]),
         lambda o: torch.distributions.Bernoulli(logits=o[:, 0])),
        ("gaussian", torch.randn(5, 2), torch.randn(5, 2), lambda o: torch.distributions.Normal(o, 1.0)),
        ("poisson", torch.randn(5, 1), torch.tensor([0.0, 3, 1, 7, 2]),
         lambda o: torch.distributions.Poisson(o[:, 0].exp())),
    ],
)
def test_likelihoods_are_those_of_torch_distributions(name, output, target, distribution):
    expected = -distribution(output).log_prob(target).sum()
    got = likelihoods.negative_log_likelihood(output, target, name)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_likelihood_of_ones_own():
    model = make_model()
    bound = elbo(model, X, Y, n_data=8, likelihood=lambda out, y: -out.abs().sum(-1), mode="mean")
    with fastlbbnn.weights("mean"):
        torch.testing.assert_close(bound.log_likelihood, -model(X).abs().sum())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: elbo(m, X, Y, n_data=0), ValueError, "n_data=0"),
        (lambda m: elbo(m, X, Y, n_data=-5), ValueError, "n_data=-5"),
        (lambda m: elbo(m, X, Y, n_data=10.0), TypeError, "n_data=10.0"),
        (lambda m: elbo(m, X, Y[:5], n_data=8), ValueError, r"output \[8, 3\] and the target \[5\]"),
        (lambda m: elbo(m, X[:0], Y[:0], n_data=8), ValueError, "empty batch"),
        (lambda m: elbo(m, X, Y, n_data=8, likelihood="normal"), ValueError, "likelihood='normal'"),
        (lambda m: elbo(m, X, Y, n_data=8, samples=0), ValueError, "samples=0"),
        (lambda m: elbo(
            nn.Linear(6, 3), X, Y, n_data=8, likelihood="categorical"
        ), ValueError, "no Bayesian layers"),
        (lambda m: kl(nn.Linear(6, 3)), ValueError, "no Bayesian layers"),
        (lambda m: elbo(m, X, Y.float(), n_data=8, likelihood="gaussian"), ValueError, "expected one shape"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(make_model())


# --- a problem with a known answer ------------------------------------------------------------

NOISE, PSI, SIGMA2 = 0.25, 0.3, 1.0


def toy(n=30, k=4):
    """y = x beta + noise, of which two coefficients are zero; every structure can be enumerated."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, k, dtype=torch.float64, generator=g)
    beta = torch.tensor([1.0, 0.0, -0.7, 0.0], dtype=torch.float64)
    return x, x @ beta + math.sqrt(NOISE) * torch.randn(n, dtype=torch.float64, generator=g)


def log_evidence(x, y) -> tuple[float, torch.Tensor]:
    """log p(y) and the exact inclusion probabilities, by summing over all 2^k structures."""
    log_terms, structures = [], list(itertools.product((0, 1), repeat=x.shape[1]))
    for gamma in structures:
        xg = x[:, torch.tensor(gamma, dtype=torch.bool)]
        covariance = NOISE * torch.eye(len(x), dtype=torch.float64) + SIGMA2 * xg @ xg.T
        log_prior = sum(math.log(PSI if g else 1 - PSI) for g in gamma)
        marginal = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
        log_terms.append(marginal + log_prior)
    log_terms = torch.stack(log_terms)
    total = torch.logsumexp(log_terms, 0)
    weights = (log_terms - total).exp()
    return total.item(), (weights[:, None] * torch.tensor(structures, dtype=torch.float64)).sum(0)


def exact_bound(layer, x, y) -> torch.Tensor:
    """The bound with binary indicators. A linear model's activations have known moments, and
    E[log N(y; f, s)] = log N(y; E f, s) - Var f / (2 s).
    """
    alpha, kappa = torch.sigmoid(layer.omega.double()), layer.kappa.double()
    tau = reference.softplus(layer.rho.double())
    mean = x @ (alpha * kappa)[0]
    var = x**2 @ (alpha * (tau**2 + (1 - alpha) * kappa**2))[0]
    log_p = -0.5 * (((y - mean) ** 2 + var) / NOISE + math.log(2 * math.pi * NOISE))
    return log_p.sum() - layer.kl().double()


def toy_layer(**kwargs) -> LBBNNLinear:
    torch.manual_seed(0)
    return LBBNNLinear(4, 1, bias=False, prior=FixedPrior(PSI, SIGMA2), **kwargs)


def test_the_elbo_is_a_lower_bound_of_the_exact_evidence():
    x, y = toy()
    evidence, inclusion = log_evidence(x, y)
    layer = toy_layer(dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    values = []
    for _ in range(1500):
        optimizer.zero_grad()
        value = exact_bound(layer, x, y)
        (-value).backward()
        optimizer.step()
        values.append(value.item())
    assert max(values) < evidence
    # With nearly orthogonal inputs the factorised posterior is nearly exact.
    assert values[-1] > evidence - 0.1
    torch.testing.assert_close(layer.inclusion_probabilities()[0], inclusion, rtol=0.0, atol=0.02)


@pytest.mark.parametrize("estimator,temperature", [("concrete", 0.3), ("local", 0.3)])
def test_stochastic_training_finds_the_bound_and_the_structure(estimator, temperature):
    x, y = toy()
    evidence, inclusion = log_evidence(x, y)
    layer = toy_layer(estimator=estimator, temperature=temperature)
    optimizer = fastlbbnn.Adam(layer.parameters(), lr=0.05)
    for _ in range(1500):
        optimizer.backward_step(
            elbo(
                layer, x.float(), y[:, None].float(), n_data=len(x), likelihood=Gaussian(NOISE), samples=4
            ).loss
        )
    bound = exact_bound(layer, x, y).item()
    # A nat for gates that are relaxed while training and the noise of the last steps.
    assert evidence - 1.0 < bound < evidence
    assert ((layer.inclusion_probabilities()[0] > 0.5) == (inclusion > 0.5)).all()


def test_the_estimate_has_the_exact_bound_as_its_mean():
    x, y = toy()
    layer = toy_layer()
    exact = exact_bound(layer, x, y).item()
    draws = 2000
    with torch.no_grad(), fastlbbnn.weights("sampled", samples=draws):
        out = layer(fastlbbnn.expand_samples(x.float(), draws))[..., 0].double()
    log_p = -0.5 * ((out - y) ** 2 / NOISE + math.log(2 * math.pi * NOISE)).sum(1)
    error = log_p.std().item() / math.sqrt(draws)
    assert abs(log_p.mean().item() - layer.kl().item() - exact) < 4 * error


@pytest.mark.parametrize(("estimator", "mode", "is_bound"), [
    ("local", None, True), ("concrete", None, False), ("concrete", "sampled", True),
    ("local", "sampled", True), ("local", "median", False), ("concrete", "relaxed", False),
])
def test_it_says_whether_it_is_a_bound(estimator, mode, is_bound):
    bound = elbo(make_model(estimator=estimator), X, Y, n_data=100, mode=mode)
    assert bound.is_bound is is_bound
    assert repr(bound).startswith("ELBO(value=" if is_bound else "ELBO(surrogate=")


def test_the_bound_of_the_default_estimator_is_below_the_evidence():
    """A linear model of three inputs, all 2^3 structures enumerated; without biases, noise variance 1."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, generator=generator)
    y = (x @ torch.tensor([0.8, 0.0, -0.3])).unsqueeze(1) + torch.randn(40, 1, generator=generator)
    prior = FixedPrior(psi=0.3, sigma2=1.0)
    evidence = []
    for gamma in itertools.product((0.0, 1.0), repeat=3):
        g = torch.tensor(gamma)
        covariance = torch.eye(40, dtype=torch.float64) + ((x * g) @ (x * g).T).double()
        marginal = MultivariateNormal(torch.zeros(40, dtype=torch.float64), covariance)
        log_p = marginal.log_prob(y[:, 0].double())
        evidence.append(log_p + sum(math.log(0.3 if v else 0.7) for v in gamma))
    log_evidence = torch.stack(evidence).logsumexp(0).item()
    torch.manual_seed(0)
    layer = LBBNNLinear(3, 1, bias=False, prior=prior)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(1500):
        optimizer.zero_grad()
        elbo(layer, x, y, n_data=40, likelihood="gaussian").loss.backward()
        optimizer.step()
    draws = [elbo(layer, x, y, n_data=40, likelihood="gaussian").value for _ in range(2000)]
    values = torch.stack(draws).double()
    error = values.std().item() / math.sqrt(len(values))
    assert values.mean().item() < log_evidence + 4.0 * error
    assert values.mean().item() > log_evidence - 3.0
