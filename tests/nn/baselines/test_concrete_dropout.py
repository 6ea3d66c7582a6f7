"""Concrete dropout: its KL, its masks, its rate."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal

from fastlbbnn.nn import ConcreteDropoutLinear, expand_samples, weights


@pytest.fixture(autouse=True)
def the_same_draws_in_every_run():
    torch.manual_seed(0)


@pytest.mark.parametrize("dropout", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("sigma2", [1.0, 0.2])
def test_the_kl_is_the_mixtures_up_to_a_constant(dropout, sigma2):
    """One weight: q = p N(0, s^2) + (1-p) N(m, s^2) for small s, by quadrature.

    Apart from what the layer counts, the divergence has the constant (s^2/sigma2 - 1 - log(s^2/sigma2))/2.
    """
    layer = ConcreteDropoutLinear(1, 1, bias=False, dropout=dropout, sigma2=sigma2, dtype=torch.float64)
    torch.nn.init.constant_(layer.kappa, 0.4)
    m, s = 0.4 / (1.0 - dropout), 1e-3
    zero = torch.tensor(0.0, dtype=torch.float64)
    # Around each of the two parts, which lie more than 400 s apart, 4001 nodes over 12 s.
    t = torch.linspace(-12.0, 12.0, 4001, dtype=torch.float64) * s
    total = 0.0
    for center, share in ((0.0, dropout), (m, 1.0 - dropout)):
        w = center + t
        log_parts = [
            math.log(dropout) + Normal(zero, s).log_prob(w),
            math.log1p(-dropout) + Normal(zero + m, s).log_prob(w),
        ]
        log_q = torch.logsumexp(torch.stack(log_parts), 0)
        log_p = Normal(zero, math.sqrt(sigma2)).log_prob(w)
        inside = share * torch.exp(Normal(zero + center, s).log_prob(w)) * (log_q - log_p)
        total += torch.trapezoid(inside, t).item()
    constant = 0.5 * (s**2 / sigma2 - 1.0 - math.log(s**2 / sigma2))
    assert layer.kl().item() == pytest.approx(total - constant, abs=1e-9)


def test_biases_and_all_that_is_dropped_count():
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    for drops, of_bias, masked in (("inputs", 1.0, 7), ("outputs", 1.0 / 0.75, 3), ("weights", 1.0, 21)):
        layer = ConcreteDropoutLinear(7, 3, dropout=0.25, drops=drops, sigma2=2.0, dtype=torch.float64)
        kappa, bias = layer.kappa.detach(), layer.bias_kappa.detach()
        expected = ((kappa**2).sum() / 0.75 + of_bias * (bias**2).sum()) / 4.0 - masked * entropy
        torch.testing.assert_close(layer.kl().detach(), expected)


def test_sampled_masks_drop_whole_inputs_at_the_rate():
    draws, rate = 4000, 0.3
    layer = ConcreteDropoutLinear(5, 3, bias=False, dropout=rate)
    with torch.no_grad(), weights("sampled", samples=draws):
        y = layer(expand_samples(torch.eye(5), draws))  # [draws, 5 inputs, 3 outputs]: the weights
    kept = y != 0
    assert torch.equal(kept.any(-1), kept.all(-1))
    full = (layer.kappa / (1.0 - rate)).T.expand_as(y)
    torch.testing.assert_close(y, torch.where(kept, full, 0.0))
    share = kept[..., 0].float().mean(0)
    assert ((share - (1.0 - rate)).abs() < 4.0 * math.sqrt(rate * (1.0 - rate) / draws)).all()


def test_sampled_masks_drop_whole_outputs_with_their_bias():
    draws, rate = 4000, 0.3
    layer, x = ConcreteDropoutLinear(5, 3, dropout=rate, drops="outputs"), torch.randn(6, 5)
    with torch.no_grad(), weights("sampled", samples=draws):
        y = layer(expand_samples(x, draws))  # [draws, 6, 3]
    full = (torch.nn.functional.linear(x, layer.kappa, layer.bias_kappa) / (1.0 - rate)).expand_as(y)
    kept = y != 0
    assert torch.equal(kept.any(1), kept.all(1))  # one network per draw: the same for all observations
    torch.testing.assert_close(y, torch.where(kept, full, 0.0))
    share = kept[:, 0].float().mean(0)
    assert ((share - (1.0 - rate)).abs() < 4.0 * math.sqrt(rate * (1.0 - rate) / draws)).all()


def test_sampled_masks_drop_single_weights_and_no_bias():
    draws, rate = 4000, 0.3
    layer = ConcreteDropoutLinear(5, 3, dropout=rate, drops="weights")
    with torch.no_grad(), weights("sampled", samples=draws):
        # [draws, 5 inputs, 3 outputs], less the biases: the weights of one network per draw.
        y = layer(expand_samples(torch.cat([torch.eye(5), torch.zeros(1, 5)]), draws))
    bias, drawn = y[:, 5:], y[:, :5] - y[:, 5:]
    torch.testing.assert_close(bias, layer.bias_kappa.expand_as(bias))
    full = (layer.kappa / (1.0 - rate)).T
    # A weight and its bias, of size 1 at most, are added and taken apart again: two roundings.
    kept = drawn.abs() > 2.0 * 2.0**-23
    torch.testing.assert_close(drawn, torch.where(kept, full, 0.0), rtol=0, atol=2.0 * 2.0**-23)
    deviation = math.sqrt(rate * (1.0 - rate) / draws)
    assert ((kept.float().mean(0) - (1.0 - rate)).abs() < 4.0 * deviation).all()
    # Masks are independent: correlations of 15 weights are within 4.5 of their standard error, 1/sqrt(draws).
    correlations = torch.corrcoef(kept.float().reshape(draws, 15).T) - torch.eye(15)
    assert correlations.abs().max() < 4.5 / math.sqrt(draws)


def test_masks_of_weights_are_the_same_at_any_number_of_samples():
    """A network is what its seed and its number say, however many are drawn beside it."""
    layer, x = ConcreteDropoutLinear(6, 4, drops="weights", dropout=0.5), torch.randn(3, 6)
    drawn = []
    for samples in (2, 5):
        with weights("sampled", samples=samples, generator=torch.Generator().manual_seed(1)):
            drawn.append(layer(expand_samples(x, samples)))
    assert torch.equal(drawn[0], drawn[1][:2])


def test_training_with_masks_of_weights_takes_inputs_of_zeros():
    layer = ConcreteDropoutLinear(6, 4, drops="weights", dropout=0.5)
    y = layer(torch.zeros(3, 6))
    # A standard deviation of 1e-15 beside a bias.
    torch.testing.assert_close(y, layer.bias_kappa.expand(3, 4), rtol=0, atol=1e-12)
    y.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("drops", ["inputs", "outputs", "weights"])
def test_a_scaled_start_leaves_the_squares_of_the_outputs_as_they_would_be_without_masks(drops):
    draws, rate = 2000, 0.9
    layer = ConcreteDropoutLinear(50, 40, bias=False, dropout=rate, drops=drops, scaled_start=True)
    x = torch.randn(20, 50)
    with torch.no_grad(), weights("sampled", samples=draws):
        squares = layer(expand_samples(x, draws)).square().mean((1, 2))
    # nn.Linear's weights are uniform with variance 1/(3 inputs). What the mean over draws misses by: their
    # own spread (4 standard errors), and that 2000 weights and 1000 inputs stand for their distributions
    # (relative standard deviations of squares sqrt(4/5/2000) and sqrt(2/1000), again 4 of them).
    expected = 1.0 / 3.0
    of_draws = squares.std().item() / math.sqrt(draws)
    of_start = expected * math.sqrt(0.8 / 2000 + 2.0 / 1000)
    assert squares.mean().item() == pytest.approx(expected, abs=4.0 * (of_draws + of_start))
    assert layer.kappa.abs().max().item() <= math.sqrt((1.0 - rate) / 50)


def test_dropped_outputs_are_dropped_inputs_of_the_layer_above():
    """ReLU(z y) = z ReLU(y): given the mask, a hidden unit is dropped on either side alike."""
    torch.manual_seed(0)
    below = ConcreteDropoutLinear(5, 8, dropout=0.4, drops="outputs")
    above = ConcreteDropoutLinear(8, 3, dropout=0.4)
    x = torch.randn(6, 5)
    with torch.no_grad():
        with weights("sampled", generator=torch.Generator().manual_seed(1)):
            one = torch.nn.functional.linear(below(x).relu(), above.kappa, above.bias_kappa)
        with weights("sampled", generator=torch.Generator().manual_seed(1)):
            plain = torch.nn.functional.linear(x, below.kappa, below.bias_kappa)
            other = above(plain.relu())
    # Sums of 8 terms in another order of scaling: 8 roundings of numbers of size 1.
    torch.testing.assert_close(one, other, rtol=0, atol=8 * 2.0**-23)


@pytest.mark.parametrize("drops", ["inputs", "outputs", "weights"])
def test_gradients_are_those_of_finite_differences(drops):
    """In float64, through the relaxed masks (or drawn activations) of a fixed seed and the KL."""
    layer = ConcreteDropoutLinear(4, 3, dropout=0.3, drops=drops, temperature=0.5, dtype=torch.float64)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

    def of(x, *_):
        with weights("relaxed", generator=torch.Generator().manual_seed(3)):
            return layer(x), layer.kl()

    assert torch.autograd.gradcheck(of, (x, *layer.parameters()))


@pytest.mark.parametrize("drops", ["inputs", "outputs"])
def test_training_masks_differ_between_observations_and_are_relaxed(drops):
    layer = ConcreteDropoutLinear(1, 1, bias=False, dropout=0.5, drops=drops, temperature=0.5)
    y = layer(torch.ones(4000, 1)) * 0.5 / layer.kappa
    assert ((y > 0) & (y < 1.0 + 1e-6)).all()
    # logit u within 2.3 of zero, in 82 % of draws, gives masks between 0.01 and 0.99.
    assert ((y > 0.01) & (y < 0.99)).float().mean() > 0.75
    assert len(y.unique()) > 3000
    # Symmetric about 1/2 at a rate of one half; a mask's variance is below that of a coin, 1/4.
    assert abs(y.mean().item() - 0.5) < 4.0 * 0.5 / math.sqrt(4000)


def test_the_mean_pass_has_no_noise_and_no_dropout():
    layer, x = ConcreteDropoutLinear(6, 4, dropout=0.5).eval(), torch.randn(3, 6)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.kappa, layer.bias_kappa))


def test_densities_are_shares_of_inputs():
    layer = ConcreteDropoutLinear(6, 4, dropout=0.3)
    assert layer.dropout_rate() == pytest.approx(0.3)
    for mode in ("sampled", "relaxed", "median"):
        assert layer.density(mode) == pytest.approx(0.7)
    for mode in ("mean", "median-mean"):
        assert layer.density(mode) == 1.0


def test_the_rate_learns_from_the_data():
    """An exact linear relation has no use for dropout; a likelihood that says nothing has, for entropy."""
    torch.manual_seed(0)
    x, rates = torch.randn(100, 4), []
    for weight in (100.0, 0.0):
        layer = ConcreteDropoutLinear(4, 1, dropout=0.2)
        optimizer = torch.optim.Adam(layer.parameters(), lr=3e-2)
        for _ in range(300):
            optimizer.zero_grad()
            loss = weight * (layer(x) - x.sum(-1, keepdim=True)).square().sum() + layer.kl()
            loss.backward()
            optimizer.step()
        rates.append(layer.dropout_rate())
    assert rates[0] < 0.02
    assert rates[1] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dropout": 0.0}, "dropout=0.0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"sigma2": 0.0}, "sigma2=0.0"),
        ({"sigma2": math.inf}, "sigma2=inf"),
        ({"drops": "units"}, "drops='units'; expected one of 'inputs', 'outputs', 'weights'"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ConcreteDropoutLinear(2, 2, **kwargs)
