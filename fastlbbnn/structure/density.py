"""How many of a network's weights a prediction uses."""

from __future__ import annotations

import torch
from torch import nn

from .._util.checks import check_samples
from ..nn.layer import bayesian_layers
from ..nn.modes import WeightMode
from .paths import inclusion_of_weights


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
            # log1p and expm1: no weight is lost among many with tiny probabilities.
            absent = torch.log1p(-inclusion_of_weights(layer).double()) * samples
            kept += count * -torch.expm1(absent).mean().item()
        else:
            kept += count * layer.density(mode, threshold)
    return kept / total
