"""Prediction by model averaging, by the posterior mean, or by the median probability model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ._checks import check_positive_int, check_samples
from .nn.modes import WeightMode, expand_samples, weights
from .objective import bayesian_layers
from .structure import inclusion_of_weights


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


@torch.no_grad()
def predict(
    model: nn.Module,
    x: Tensor,
    *,
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 10,
    threshold: float = 0.5,
    transform: Callable[[Tensor], Tensor] = _softmax,
    batch_size: int = 1000,
    average: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Predictive distribution of ``model`` at ``x``.

    Args:
        mode: what stands in for the weights; "sampled" averages over models and parameters.
        samples: draws to average (R in the paper), for modes that draw. Every batch sees the same
            draws.
        threshold: inclusion probability above which the median model keeps a weight.
        transform: from the network's output to what is averaged; by default class probabilities.
        batch_size: observations at a time.
        average: mean over the samples ``[len(x), ...]``; else all of them ``[samples, len(x), ...]``.
        generator: where the seed comes from.

    The model's ``training`` flag is left as it was; dropout and the like are off.
    """
    check_samples(samples)
    check_positive_int("batch_size", batch_size)
    mode = WeightMode(mode)
    draws = samples if mode.random else 1
    # A batch repeats the draws of the first: one generator state for all of them.
    source = torch.Generator()
    seed = torch.randint(0, 2**62, (), generator=generator)
    training = model.training
    model.eval()
    try:
        outputs = []
        for part in x.split(batch_size):
            source.manual_seed(int(seed))
            with weights(mode, samples=draws, threshold=threshold, generator=source):
                outputs.append(transform(model(expand_samples(part, draws))))
    finally:
        model.train(training)
    result = torch.cat(outputs, dim=1)
    return result.mean(0) if average else result


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
