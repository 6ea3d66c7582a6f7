"""What a prior keeps to: run ``check_prior`` over one of your own.

    PRIORS.register("mine", MyPrior)
    check_prior(MyPrior)

Every check raises AssertionError with a sentence.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import ops, reference
from ..inference.elbo import elbo
from ..inference.optim import Adam, param_groups
from ..nn.linear import GaussianLinear, LBBNNLinear
from ..nn.priors import PRIORS, Prior

#: Positions in the five sums.
_H, _A, _A_W, _T, _S = range(5)


def check_prior(make: Callable[[], Prior]) -> None:
    """All checks, of what ``make`` makes: the registered class, or a function that makes one."""
    prior = make()
    assert isinstance(prior, Prior), f"{prior!r} is not a Prior: derive from it"
    name = type(prior).__name__
    assert type(prior) in PRIORS.values(), (
        f"{name} is not among PRIORS: PRIORS.register('name', {name}) gives it a name"
    )
    check_value(prior, name)
    check_gradient_is_that_of_the_value(prior, name)
    check_posterior_is_left_to_the_sums(prior, name)
    check_parameters(prior, name)
    check_copies_are_apart(prior, name)
    check_state(make, name)
    check_log_odds(make, name)
    check_inference_mode_leaves_nothing(make, name)
    check_trains_in_a_layer(make, name)


def sample_sums(gated: bool, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, int]]:
    """The five sums of some posteriors, and their numbers of indicators."""
    found = []
    for seed, (rows, cols) in enumerate(((1, 1), (3, 5), (40, 30))):
        g = torch.Generator().manual_seed(seed)

        def normal(*shape: int, scale: float, shift: float, g: torch.Generator = g) -> Tensor:
            return scale * torch.randn(*shape, generator=g, dtype=torch.float64) + shift

        sums = reference.kl_sums(
            normal(rows, cols, scale=0.3, shift=0.0), normal(rows, cols, scale=1.5, shift=-3.0),
            normal(rows, cols, scale=2.0, shift=0.0) if gated else None,
            normal(rows, scale=0.1, shift=0.0), normal(rows, scale=0.5, shift=-2.0),
        )  # fmt: skip
        found.append((sums.to(dtype), rows * cols if gated else 0))
    return found


def check_value(prior: Prior, name: str) -> None:
    """A number of nats that is not negative, the same twice, with indicators and without, in any dtype."""
    for gated in (True, False):
        for (sums, blocks), (single, _) in zip(sample_sums(gated), sample_sums(gated, torch.float32)):
            value = prior.kl(sums, blocks)
            assert value.shape == (), f"{name}.kl gives {list(value.shape)}, not a number"
            assert bool(value.isfinite()), f"{name}.kl is {value.item()} for sums {sums.tolist()}"
            assert value.item() >= -1e-6 * sums.abs().sum().item(), (
                f"{name}.kl is {value.item():.6g}; a divergence is not negative"
            )
            again = prior.kl(sums, blocks)
            assert torch.equal(value, again), f"{name}.kl gives another number when it is asked again"
            rounded = prior.kl(single, blocks)
            # Float32 sums, each rounded once, in at most a dozen products and sums.
            allowed = 24.0 * 2.0**-23 * (1.0 + float(sums.abs().sum())) * (1.0 + _slope(prior, sums, blocks))
            assert abs(rounded.item() - value.item()) <= allowed, (
                f"{name}.kl of sums in float32 is {rounded.item():.8g}, and {value.item():.8g} in float64"
            )


def _gradient(prior: Prior, sums: Tensor, blocks: int) -> Tensor:
    sums = sums.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(prior.kl(sums, blocks), sums)
    return gradient


def _slope(prior: Prior, sums: Tensor, blocks: int) -> float:
    return float(_gradient(prior, sums, blocks).abs().max())


def check_gradient_is_that_of_the_value(prior: Prior, name: str) -> None:
    """The derivative of ``kl`` in each of the five sums, against differences."""
    for gated in (True, False):
        for sums, blocks in sample_sums(gated)[1:]:
            gradient = _gradient(prior, sums, blocks)
            for i, what in enumerate(("H", "A", "A_w", "T", "S")):
                if not gated and i in (_H, _A):
                    continue
                h = 1e-4 * max(1.0, float(sums[i].abs()))
                step = torch.zeros_like(sums)
                step[i] = h
                with torch.no_grad():
                    difference = (prior.kl(sums + step, blocks) - prior.kl(sums - step, blocks)) / (2.0 * h)
                # Parameters in float32 give a value of their precision.
                rounding = 2.0**-22 * float(prior.kl(sums, blocks).detach().abs()) / h
                error, size = abs(float(difference - gradient[i])), 1.0 + abs(float(gradient[i]))
                assert error <= 1e-3 * size + rounding, (
                    f"{name}.kl has the derivative {gradient[i]:.6g} in {what}, and differences say "
                    f"{difference:.6g}"
                )


def check_posterior_is_left_to_the_sums(prior: Prior, name: str) -> None:
    """H and T are the posterior's entropies, which no prior changes: KL has them once and by -1/2."""
    for sums, blocks in sample_sums(gated=True):
        gradient = _gradient(prior, sums, blocks)
        for i, what, expected in ((_H, "H", 1.0), (_T, "T", -0.5)):
            assert abs(float(gradient[i]) - expected) <= 1e-5, (
                f"{name}.kl has the derivative {gradient[i]:.6g} in {what}; expected {expected:g}: the "
                "posterior's entropy is the same for every prior"
            )


def check_log_odds(make: Callable[[], Prior], name: str) -> None:
    """``set_log_odds`` decides psi alone, which enters the KL by -log_odds A; None undoes it."""
    prior = make()
    (_, _, (sums, blocks)) = sample_sums(gated=True)
    own, slopes = prior.kl(sums, blocks), _gradient(prior, sums, blocks)
    for odds in (-7.0, 1.5):
        prior.set_log_odds(odds)
        gradient = _gradient(prior, sums, blocks)
        assert abs(float(gradient[_A]) + odds) <= 1e-5, (
            f"{name}.kl has the derivative {gradient[_A]:.6g} in A after set_log_odds({odds:g}); expected "
            f"{-odds:g}: give the expectations to _steered, or the dial turns nothing"
        )
        assert torch.allclose(gradient[[_A_W, _S]], slopes[[_A_W, _S]], rtol=1e-5), (
            f"{name}.set_log_odds changes what is known of sigma2"
        )
        held = make()
        held.load_state_dict(prior.state_dict())
        assert torch.equal(held.kl(sums, blocks), prior.kl(sums, blocks)), (
            f"{name} does not hold its log-odds in its state_dict"
        )
    prior.set_log_odds(None)
    assert torch.equal(prior.kl(sums, blocks), own), f"{name}.set_log_odds(None) does not undo the other"


def check_parameters(prior: Prior, name: str) -> None:
    """Hyperparameters that learn are of psi or of sigma2, so that they have a step size; none of both."""
    every = list(prior.parameters())
    psi, sigma2 = list(prior.psi_parameters()), list(prior.sigma2_parameters())
    named = [id(p) for p in (*psi, *sigma2)]
    assert len(set(named)) == len(named), f"{name} names a parameter for psi and for sigma2"
    assert set(named) == {id(p) for p in every}, (
        f"{name} has {len(every)} parameters and psi_parameters() and sigma2_parameters() give {len(named)}"
    )
    assert isinstance(prior.has_settled(0.5), bool), f"{name}.has_settled is not a bool"
    (_, (sums, blocks), _) = sample_sums(gated=True)
    if every:
        gradients = torch.autograd.grad(prior.kl(sums, blocks), every, allow_unused=True)
        assert all(g is not None and bool(g.isfinite().all()) for g in gradients), (
            f"{name}.kl gives a parameter no finite gradient"
        )
        before = prior.kl(sums, blocks)
        changed = copy.deepcopy(prior)
        with torch.no_grad():
            for p in changed.parameters():
                p.add_(0.3)
        changed.reset_parameters()
        assert torch.equal(changed.kl(sums, blocks), before), f"{name}.reset_parameters does not start anew"


def check_copies_are_apart(prior: Prior, name: str) -> None:
    """Every layer has a copy of its own."""
    (_, (sums, blocks), _) = sample_sums(gated=True)
    before, copied = prior.kl(sums, blocks), copy.deepcopy(prior)
    assert torch.equal(copied.kl(sums, blocks), before), f"a copy of {name} has another KL"
    copied.set_log_odds(3.0)
    with torch.no_grad():
        for p in copied.parameters():
            p.add_(0.3)
    assert torch.equal(prior.kl(sums, blocks), before), f"a change to a copy of {name} changes the original"


def check_state(make: Callable[[], Prior], name: str) -> None:
    """A ``state_dict`` holds all that decides the KL, and that of another kind is refused."""
    prior, other = make(), make()
    (_, (sums, blocks), _) = sample_sums(gated=True)
    for key, value in prior.numbers().items():
        assert isinstance(value, (int, float)) and hasattr(prior, key), (
            f"{name}.numbers() has {key}={value!r}; expected numbers that are attributes of the same name"
        )
        changed = 0.5 * value if value else 0.25
        setattr(other, key, changed)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.3)
    other.load_state_dict(prior.state_dict())
    assert torch.equal(other.kl(sums, blocks), prior.kl(sums, blocks)), (
        f"{name} loads its state_dict and has another KL: say in numbers() what is not a parameter or buffer"
    )

    class Another(Prior):
        pass

    try:
        prior.load_state_dict(Another().state_dict())
    except (ValueError, RuntimeError):
        return
    raise AssertionError(f"{name} loads the state_dict of another kind of prior; expected a ValueError")


def check_inference_mode_leaves_nothing(make: Callable[[], Prior], name: str) -> None:
    """A KL in inference mode comes before one with gradients, and does it no harm."""
    prior = make()
    (_, (sums, blocks), _) = sample_sums(gated=True)
    with torch.inference_mode():
        prior.kl(sums, blocks)
    try:
        _gradient(prior, sums, blocks)
    except RuntimeError as error:
        raise AssertionError(
            f"{name}.kl has no gradient after a call within torch.inference_mode(): {error}"
        ) from error


def check_trains_in_a_layer(make: Callable[[], Prior], name: str) -> None:
    """Layers with indicators and without have its KL, and steps lower their loss."""
    torch.manual_seed(0)
    layers = LBBNNLinear(6, 5, prior=make()), GaussianLinear(5, 2, prior=make())
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    for layer in layers:
        sums = ops.kl_sums(layer.kappa, layer.rho, layer.logits(), layer.bias_kappa, layer.bias_rho)
        expected = layer.prior.kl(sums, layer.blocks())
        assert torch.allclose(layer.kl(), expected), f"a layer with {name} has not its KL"
    optimizer = Adam(param_groups(model, weights=1e-2, inclusion=1e-2, psi=1e-2, sigma2=1e-2))
    losses = []
    for step in range(60):
        g = torch.Generator().manual_seed(step % 10)
        bound = elbo(model, x, y, n_data=40, likelihood="categorical", generator=g)
        losses.append(bound.loss.item())
        optimizer.backward_step(bound)
    assert all(map(math.isfinite, losses)), f"training with {name} gives losses that are not finite"
    assert sum(losses[-10:]) < sum(losses[:10]), f"training with {name} does not lower the loss"
