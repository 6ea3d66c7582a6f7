"""What a likelihood promises (``fastlbbnn.inference.likelihoods.Likelihood``)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..inference.likelihoods import LIKELIHOODS, Likelihood, set_likelihood

#: Observations that are looked at, and draws whose moments are.
ROWS, DRAWS = 6, 20_000


def check_likelihood(make: Callable[[], Likelihood], *, outputs: int = 3) -> None:
    """Raise AssertionError if what ``make`` makes does not keep a likelihood's promises.

    Args:
        make: the registered class, or a function that makes one.
        outputs: of the network that it is for.
    """
    likelihood = make()
    assert isinstance(likelihood, Likelihood), f"{likelihood!r} is not a Likelihood: derive from it"
    name = type(likelihood).__name__
    check_name(likelihood, name)
    output = torch.randn(ROWS, outputs, generator=_seeded(1))
    target = likelihood.sample(output, _seeded(2))
    check_log_probabilities(likelihood, name, output, target)
    check_loss(likelihood, name, output, target)
    check_shapes_are_not_broadcast(likelihood, name, output, target)
    check_values_are_looked_at(likelihood, name, output, target)
    check_responses(likelihood, name, output, target)
    check_config(likelihood, name, output, target)
    check_parameters(make, name, output, target)


def check_name(likelihood: Likelihood, name: str) -> None:
    """It is registered under its own name."""
    assert isinstance(likelihood.name, str) and likelihood.name, f"{name}.name is not a name"
    assert LIKELIHOODS.get(likelihood.name) is type(likelihood), (
        f"{name} is not what LIKELIHOODS knows as {likelihood.name!r}: register the class under its name"
    )
    assert isinstance(likelihood.classes, bool), f"{name}.classes is not a bool"


def check_log_probabilities(likelihood: Likelihood, name: str, output: Tensor, target: Tensor) -> None:
    """One per observation, with any sample axes in front."""
    log_p = likelihood.log_prob(output, target)
    assert log_p.shape == (ROWS,), f"{name}.log_prob gives {list(log_p.shape)}, not one per row, [{ROWS}]"
    assert bool(log_p.isfinite().all()), f"{name}.log_prob of responses that were drawn from it is not finite"
    draws = torch.stack((output, 0.5 * output, -output))
    expected = torch.stack([likelihood.log_prob(one, target) for one in draws])
    got = likelihood.log_prob(draws, target)
    assert got.shape == expected.shape, f"{name}.log_prob of 3 draws gives {list(got.shape)}, not [3, {ROWS}]"
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5), (
        f"{name}.log_prob of several draws is not that of each of them"
    )
    order = torch.arange(ROWS - 1, -1, -1)
    turned = likelihood.log_prob(output[order], target[order])
    assert torch.allclose(turned, log_p[order], rtol=1e-5, atol=1e-5), (
        f"{name}.log_prob of an observation depends on the others"
    )


def check_loss(likelihood: Likelihood, name: str, output: Tensor, target: Tensor) -> None:
    """A sum over the batch, the negative of the expected log-probabilities, with a gradient."""
    output = output.clone().requires_grad_()
    loss = likelihood.nll(output, target)
    assert loss.shape == (), f"{name}.nll gives {list(loss.shape)}, not a number"
    each = likelihood.expected_log_prob(output, likelihood.fit(output, target))
    assert each.shape == (ROWS,), f"{name}.expected_log_prob gives {list(each.shape)}, not [{ROWS}]"
    assert torch.allclose(loss, -each.sum(), rtol=1e-4, atol=1e-4), (
        f"{name}.nll is {loss.item():.6g}, not minus the sum of expected_log_prob, {-each.sum().item():.6g}"
    )
    if not isinstance(likelihood, nn.Module):
        total = likelihood.log_prob(output, target).sum()
        assert torch.allclose(each.sum(), total, rtol=1e-4, atol=1e-4), (
            f"{name}.expected_log_prob is not log_prob, though it has no parameters of its own"
        )
    (gradient,) = torch.autograd.grad(loss, output)
    assert bool(gradient.isfinite().all()) and bool((gradient != 0).any()), (
        f"{name}.nll has no finite gradient at outputs that are not extreme"
    )


def check_shapes_are_not_broadcast(likelihood: Likelihood, name: str, output: Tensor, target: Tensor) -> None:
    """Targets that do not go with the outputs raise instead of spreading."""
    for what, wrong in (
        ("one row fewer", target[:-1]),
        ("an axis more", target.unsqueeze(0)),
        ("a row for all", target[:1]),
    ):
        for method in (likelihood.fit, likelihood.nll):
            try:
                method(output, wrong)
            except (ValueError, TypeError):
                continue
            raise AssertionError(
                f"{name}.{method.__name__} takes outputs {list(output.shape)} with targets "
                f"{list(wrong.shape)} ({what}); expected a ValueError with both shapes"
            )


def check_values_are_looked_at(likelihood: Likelihood, name: str, output: Tensor, target: Tensor) -> None:
    """``check_values`` passes what can occur, and refuses NaN."""
    fitted = likelihood.fit(output, target)
    likelihood.check_values(output, fitted)
    if fitted.dtype.is_floating_point:
        wrong = fitted.clone()
        wrong.view(-1)[0] = math.nan
        try:
            likelihood.check_values(output, wrong)
        except ValueError:
            return
        raise AssertionError(f"{name}.check_values lets a NaN pass; expected a ValueError")


def check_responses(likelihood: Likelihood, name: str, output: Tensor, target: Tensor) -> None:
    """Responses follow their generator, and have the mean and the variance that are stated."""
    mean, variance = likelihood.mean(output), likelihood.variance(output)
    for what, value in (("mean", mean), ("variance", variance)):
        assert value.shape == output.shape, (
            f"{name}.{what} gives {list(value.shape)} for {list(output.shape)}"
        )
    assert bool((variance >= 0).all()), f"{name}.variance is negative somewhere"
    assert torch.equal(target, likelihood.sample(output, _seeded(2))), (
        f"{name}.sample gives other responses from a generator with the same seed"
    )
    expanded = output.expand(DRAWS, *output.shape)
    drawn = likelihood.sample(expanded, _seeded(3))
    if likelihood.classes and drawn.dim() < expanded.dim():
        drawn = nn.functional.one_hot(drawn.long(), output.shape[-1])
    assert drawn.shape == expanded.shape, (
        f"{name}.sample gives {list(drawn.shape)} for {list(expanded.shape)}"
    )
    if bool(variance.isfinite().all()):
        # Six standard errors of the mean of these draws.
        error = (drawn.double().mean(0) - mean.double()).abs()
        allowed = 6.0 * (variance.double() / DRAWS).sqrt() + 1e-6
        assert bool((error <= allowed).all()), f"{name}.mean is not the mean of what sample draws"


def check_config(likelihood: Likelihood, name: str, output: Tensor, target: Tensor) -> None:
    """``to_config`` survives JSON, and makes the same likelihood again."""
    config = likelihood.to_config()
    assert config.get("name") == likelihood.name, f"{name}.to_config() does not hold its name: {config}"
    try:
        written = json.loads(json.dumps(config))
    except TypeError as error:
        raise AssertionError(f"{name}.to_config() is not JSON: {error}") from error
    again = Likelihood.from_config(written)
    assert type(again) is type(likelihood), f"{name} comes back from its config as a {type(again).__name__}"
    assert torch.equal(again.log_prob(output, target), likelihood.log_prob(output, target)), (
        f"{name} comes back from its config with other log-probabilities"
    )


def check_parameters(make: Callable[[], Likelihood], name: str, output: Tensor, target: Tensor) -> None:
    """Parameters belong to the model that states it, have a KL, and can be drawn or plugged in."""
    likelihood = make()
    drawn = likelihood.draw(4, _seeded(4)).log_prob(output.expand(4, *output.shape), target)
    assert drawn.shape == (4, ROWS), (
        f"{name}.draw(4) gives log-probabilities {list(drawn.shape)}, not [4, {ROWS}]"
    )
    plugged = likelihood.plug_in().log_prob(output, target)
    assert plugged.shape == (ROWS,), f"{name}.plug_in() gives log-probabilities {list(plugged.shape)}"
    divergence = likelihood.kl()
    model = set_likelihood(nn.Sequential(nn.Linear(2, output.shape[-1])), likelihood)
    assert model(torch.ones(1, 2)).shape == (1, output.shape[-1]), f"{name} changes the outputs of its model"
    if divergence is not None:
        assert divergence.shape == () and divergence.item() > -1e-5, f"{name}.kl() is not a number of nats"
    if isinstance(likelihood, nn.Module):
        held = set(model.parameters())
        assert held.issuperset(likelihood.parameters()), f"the model does not hold the parameters of {name}"


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
