"""Prediction by model averaging, by the posterior mean, or by the median probability model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int, check_samples
from ..inference.elbo import bayesian_layers
from ..inference.likelihoods import Likelihood, as_likelihood
from ..nn.modes import WeightMode
from ..nn.passes import expand_samples, weights
from ..structure.paths import inclusion_of_weights, warn_if_constant

_MEDIAN = (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN)


def predict(
    model: nn.Module,
    x: Tensor,
    *,
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 10,
    threshold: float = 0.5,
    likelihood: str | Likelihood = "categorical",
    transform: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 1000,
    average: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Predictive distribution of ``model`` at ``x``.

    Args:
        mode: what stands in for the weights; "sampled" averages over models and parameters.
        samples: draws to average (R in the paper), for modes that draw. Every batch sees the same
            draws.
        threshold: inclusion probability above which the median model keeps a weight. A UserWarning says
            when that leaves no path from an input to an output (``fastlbbnn.resolve_threshold`` finds the
            closest threshold that does).
        likelihood: says what is averaged, the means of the responses: class probabilities of
            "categorical" and "bernoulli", values of "gaussian", rates of "poisson".
        transform: instead of that, a function of the network's output.
        batch_size: observations at a time.
        average: mean over the samples ``[len(x), ...]``; else all of them ``[samples, len(x), ...]``.
        generator: where the seed comes from.

    The model's ``training`` flag is left as it was; dropout and the like are off.
    """
    use = as_likelihood(likelihood).mean if transform is None else transform
    _warn_if_constant(model, mode, threshold)
    result = torch.cat(
        _each_batch(
            model, x, lambda output, _: use(output), mode, samples, threshold, batch_size, generator
        ),
        dim=1,
    )
    return result.mean(0) if average else result


def log_prob_draws(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 100,
    threshold: float = 0.5,
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log p(y_i | draw r) for every observation and draw, ``[samples, len(x)]``.

    Parameters of the likelihood are drawn, too; in the modes without draws they are a point estimate.
    For ``metrics.nll_of_draws``, ``criteria.waic`` and ``criteria.dic``. Other arguments: ``predict``.
    """
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} observations and y {len(y)}; expected as many")
    family = as_likelihood(likelihood)
    if WeightMode(mode).random:
        check_samples(samples)
        family = family.draw(samples, generator)
    else:
        family = family.plug_in()
    _warn_if_constant(model, mode, threshold)
    parts = _each_batch(
        model, x, lambda output, rows: family.log_prob(output, y[rows]), mode, samples, threshold,
        batch_size, generator,
    )
    return torch.cat(parts, dim=1)


class Interval(NamedTuple):
    """Equal-tailed, each [n, outputs]."""

    mean: Tensor
    lower: Tensor
    upper: Tensor


def predict_interval(
    model: nn.Module,
    x: Tensor,
    *,
    level: float = 0.9,
    of: Literal["mean", "response"] = "mean",
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 100,
    responses: int = 1000,
    threshold: float = 0.5,
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Interval:
    """Intervals that hold a share ``level`` of the draws.

    Args:
        level: in (0, 1); as much is left out below as above.
        of: "mean" is a credible interval of the response's mean (of class probabilities, regression
            functions, rates): what the data leave open about the network. "response" is a predictive
            interval of a new observation, its noise included; not for classes, which have no order.
        samples: draws of the network.
        responses: draws of each response, spread over those of the network.

    Quantiles interpolate between draws; their error falls with the square root of the number of draws.
    Other arguments: ``predict``.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level}; expected a probability between 0 and 1")
    if of not in ("mean", "response"):
        raise ValueError(f"of={of!r}; expected 'mean' or 'response'")
    check_samples(samples)
    check_positive_int("responses", responses)
    mode = WeightMode(mode)
    family = as_likelihood(likelihood)
    if of == "mean" and not mode.random:
        raise ValueError(
            f"mode={mode.value!r} makes no draws, so its mean has no interval; use 'sampled' or 'median'"
        )
    if of == "response" and family.classes:
        raise ValueError(
            f"{type(family).__name__} responses are classes, which have no intervals; use of='mean' for "
            "their probabilities, or fastlbbnn.decide"
        )
    _warn_if_constant(model, mode, threshold)

    draws = samples if mode.random else 1
    repeats = -(-responses // draws)
    noise = torch.Generator(device=x.device)
    noise.manual_seed(int(torch.randint(0, 2**62, (), generator=generator)))
    drawn = family.draw(draws * repeats, noise) if of == "response" else family

    def interval(output: Tensor, _: slice) -> Tensor:
        mean = values = family.mean(output)
        if of == "response":
            values = drawn.sample(output.repeat_interleave(repeats, 0), noise)
        tail = 0.5 * (1.0 - level)
        return torch.stack((mean.mean(0), *quantiles(values, (tail, 1.0 - tail))))

    parts = _each_batch(model, x, interval, mode, samples, threshold, batch_size, generator)
    return Interval(*torch.cat(parts, dim=1))


def quantiles(values: Tensor, at: tuple[float, ...]) -> list[Tensor]:
    """Of the first axis, linear between neighbours; torch.quantile, without its limit on the size."""
    ordered = values.sort(0).values
    result = []
    for q in at:
        place = q * (len(values) - 1)
        low, high = math.floor(place), math.ceil(place)
        result.append(torch.lerp(ordered[low], ordered[high], place - low))
    return result


def _warn_if_constant(model: nn.Module, mode: WeightMode | str, threshold: float) -> None:
    """For public functions: the warning points to who called them."""
    if WeightMode(mode) not in _MEDIAN:
        return
    try:
        warn_if_constant(model, threshold, stacklevel=4)
    except TypeError:
        pass  # not a chain of layers: its paths are not known


@torch.no_grad()
def _each_batch(
    model: nn.Module,
    x: Tensor,
    use: Callable[[Tensor, slice], Tensor],
    mode: WeightMode | str,
    samples: int,
    threshold: float,
    batch_size: int,
    generator: torch.Generator | None,
) -> list[Tensor]:
    """``use(outputs [draws, batch, ...], rows)`` for every batch; all batches see the same draws."""
    check_samples(samples)
    check_positive_int("batch_size", batch_size)
    mode = WeightMode(mode)
    draws = samples if mode.random else 1
    # A batch repeats the draws of the first: one generator state for all of them.
    source = torch.Generator()
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    training = model.training
    model.eval()
    try:
        results = []
        # An empty x is one empty batch, so that the result has its shape.
        for begin in range(0, max(len(x), 1), batch_size):
            rows = slice(begin, begin + batch_size)
            source.manual_seed(seed)
            with weights(mode, samples=draws, threshold=threshold, generator=source):
                output = model(expand_samples(x[rows], draws))
            results.append(use(output, rows))
    finally:
        model.train(training)
    return results


@torch.no_grad()
def density(
    model: nn.Module,
    mode: WeightMode | str = "median-mean",
    threshold: float = 0.5,
    samples: int = 1,
) -> float:
    """Share of the network's weights (biases apart) that a prediction uses, as the paper counts it.

    The posterior mean [ALL] uses all. The median model [MED] uses what has an inclusion probability above
    ``threshold``, whatever the number of draws. R draws [SIM] use what is in at least one of them; its
    expected share is the mean over the weights of

        1 - (1 - alpha)^R,

    for R = 1 the mean inclusion probability. It takes the marginal probabilities alone, so it is exact
    for dependent indicators, too, as long as draws are independent. Layers without indicators say for
    themselves (``BayesianLayer.density``).

    Args:
        samples: R, the draws that are averaged; matters for sampled predictions only.
    """
    check_samples(samples)
    mode = WeightMode(mode)
    drawn = mode in (WeightMode.SAMPLED, WeightMode.RELAXED)
    total = kept = 0.0
    for layer in bayesian_layers(model):
        count = layer.weight_count()
        total += count
        if drawn and samples > 1:
            # log1p and expm1: of many weights with tiny probabilities none is lost.
            absent = torch.log1p(-inclusion_of_weights(layer).double()) * samples
            kept += count * -torch.expm1(absent).mean().item()
        else:
            kept += count * layer.density(mode, threshold)
    return kept / total
