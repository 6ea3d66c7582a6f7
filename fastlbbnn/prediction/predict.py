"""Prediction by model averaging, by the posterior mean, or by the median probability model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int, check_samples
from ..inference.likelihoods import Likelihood, likelihood_of
from ..nn.modes import WeightMode
from ..structure.thresholds import warn_if_constant
from .drawing import Drawing, evaluating
from .inputs import Inputs

_MEDIAN = (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN)


def predict(
    model: nn.Module,
    x: Any,
    *,
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 10,
    threshold: float = 0.5,
    likelihood: str | Likelihood | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 1000,
    average: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Predictive distribution of ``model`` at ``x``.

    Args:
        model: any module with Bayesian layers in it.
        x: observations along the first axis: a tensor, a numpy array or a table of numbers (numbers take
            the model's dtype), or a DataLoader of batches (of tuples the first entry counts).
        mode: what stands in for the weights; "sampled" averages over models and parameters.
        samples: draws to average (R in the paper), for modes that draw. Every batch sees the same
            draws.
        threshold: inclusion probability above which the median model keeps a weight. A UserWarning says
            when that leaves no path from an input to an output (``fastlbbnn.resolve_threshold`` finds the
            closest threshold that does).
        likelihood: says what is averaged, the means of the responses: class probabilities of
            "categorical" and "bernoulli", values of "gaussian", rates of "poisson". None is what the model
            states (``fastlbbnn.set_likelihood``).
        transform: instead of that, a function of the network's outputs ``[draws, n, ...]``.
        batch_size: observations at a time.
        average: mean over the samples ``[len(x), ...]``; else all of them ``[samples, len(x), ...]``.
        generator: where the seed comes from.

    Dropout and the like are off; each module's ``training`` flag is left as it was.
    """
    use = likelihood_of(model, likelihood).mean if transform is None else transform
    _warn_if_constant(model, mode, threshold)
    draws = _start(model, x, mode, samples, threshold, batch_size, generator)
    results = []
    with torch.no_grad(), evaluating(model):
        for batch, _ in draws.batches():
            chunks = (use(outputs) for outputs in draws.chunks(batch))
            if not average:
                results.append(torch.cat(list(chunks)))
            elif draws.count == 1:
                results.append(next(chunks)[0])
            else:
                results.append(_mean(chunks, draws.count))
    return torch.cat(results, dim=0 if average else 1)


def _mean(chunks: Iterator[Tensor], draws: int) -> Tensor:
    """Mean over the first axis of all chunks together."""
    first = next(chunks)
    if len(first) == draws:
        return first.mean(0)
    total = first.sum(0)
    for chunk in chunks:
        total += chunk.sum(0)
    return total / draws


def log_prob_draws(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 100,
    threshold: float = 0.5,
    likelihood: str | Likelihood | None = None,
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log p(y_i | draw r) for every observation and draw, ``[samples, len(x)]``.

    Parameters of the likelihood are drawn, too; in the modes without draws they are a point estimate.
    For ``metrics.nll_of_draws``, ``criteria.waic`` and ``criteria.dic``. Other arguments: ``predict``.
    """
    if not hasattr(x, "__getitem__") or not hasattr(x, "__len__"):
        raise TypeError(f"x is a {type(x).__name__}; expected a tensor, an array or a table of numbers")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} observations and y {len(y)}; expected the same number")
    y = y if isinstance(y, Tensor) else torch.as_tensor(y)
    family = likelihood_of(model, likelihood)
    if WeightMode(mode).random:
        check_samples(samples)
        drawn = family.draw(samples, generator)
    else:
        drawn = family.plug_in()
    _warn_if_constant(model, mode, threshold)
    draws = _start(model, x, mode, samples, threshold, batch_size, generator)
    results = []
    with torch.no_grad(), evaluating(model):
        for batch, rows in draws.batches():
            outputs = torch.cat(list(draws.chunks(batch)))
            target = family.fit(outputs[0], y[rows])
            family.check_values(outputs[0], target)
            results.append(drawn.log_prob(outputs, target))
    return torch.cat(results, dim=1)


class Interval(NamedTuple):
    """Equal-tailed, each [n, outputs]."""

    mean: Tensor
    lower: Tensor
    upper: Tensor


def predict_interval(
    model: nn.Module,
    x: Any,
    *,
    level: float = 0.9,
    of: Literal["mean", "response"] = "mean",
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 100,
    responses: int = 1000,
    threshold: float = 0.5,
    likelihood: str | Likelihood | None = None,
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
    family = likelihood_of(model, likelihood)
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

    repeats = -(-responses // (samples if mode.random else 1))
    noise_seed = int(torch.randint(0, 2**62, (), generator=generator))
    draws = _start(model, x, mode, samples, threshold, batch_size, generator)
    noise = torch.Generator(device=draws.device).manual_seed(noise_seed)
    tail = 0.5 * (1.0 - level)
    results = []
    with torch.no_grad(), evaluating(model):
        drawn = family.draw(draws.count * repeats, noise) if of == "response" else family
        for batch, _ in draws.batches():
            outputs = torch.cat(list(draws.chunks(batch)))
            mean = values = family.mean(outputs)
            if of == "response":
                values = drawn.sample(outputs.repeat_interleave(repeats, 0), noise)
            results.append(_equal_tailed(mean, values, tail))
    return Interval(*torch.cat(results, dim=1))


@torch.no_grad()
def response_interval(
    outputs: Tensor,
    likelihood: Likelihood,
    level: float,
    *,
    responses: int = 1000,
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Interval:
    """The predictive interval of ``predict_interval`` from outputs ``[draws, n, ...]``."""
    repeats, tail = -(-responses // len(outputs)), 0.5 * (1.0 - level)
    noise = torch.Generator(device=outputs.device)
    noise.manual_seed(int(torch.randint(0, 2**62, (), generator=generator)))
    drawn = likelihood.draw(len(outputs) * repeats, noise)
    parts = []
    for some in outputs.split(batch_size, 1):
        values = drawn.sample(some.repeat_interleave(repeats, 0), noise)
        parts.append(_equal_tailed(likelihood.mean(some), values, tail))
    return Interval(*torch.cat(parts, dim=1))


def _equal_tailed(means: Tensor, values: Tensor, tail: float) -> Tensor:
    """Mean over the draws and the two quantiles, [3, n, outputs]."""
    return torch.stack((means.mean(0), *quantiles(values, (tail, 1.0 - tail))))


def quantiles(values: Tensor, at: tuple[float, ...]) -> list[Tensor]:
    """Quantiles along the first axis, linear between neighbours: torch.quantile without its limit on the size."""
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


class _Draws:
    """The draws of a model's outputs, batch by batch of the inputs."""

    def __init__(self, inputs: Inputs, drawing: Drawing, batch_size: int) -> None:
        self._inputs, self._drawing = inputs, drawing
        self._size = drawing.rows(batch_size)
        self.device, self.count = inputs.device, drawing.draws

    def batches(self) -> Iterator[tuple[Tensor, slice]]:
        return self._inputs.batches(self._size)

    def chunks(self, batch: Tensor) -> Iterator[Tensor]:
        """Outputs [some draws, rows, ...] with one for each row of the batch."""
        for outputs in self._drawing.chunks(batch):
            if outputs.shape[1] != len(batch) and not self._inputs.fit_into(self._size):
                raise ValueError(
                    f"the model gives {outputs.shape[1]} outputs for a batch of {len(batch)} rows of x; "
                    "expected one per row: the first axis of x counts observations (batch_first=True), or give "
                    "all of it at once (batch_size=len(x))"
                )
            yield outputs


def _start(
    model: nn.Module,
    x: Any,
    mode: WeightMode | str,
    samples: int,
    threshold: float,
    batch_size: int,
    generator: torch.Generator | None,
) -> _Draws:
    check_samples(samples)
    check_positive_int("batch_size", batch_size)
    mode = WeightMode(mode)
    inputs = Inputs(model, x)
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    return _Draws(inputs, Drawing(model, mode, samples, threshold, seed, inputs.device), batch_size)
