"""Whether a network has learned anything: its fit beside that of the best constant prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..data import Dataset
from ..inference.likelihoods import likelihood_of
from ..nn.modes import WeightMode
from ..nn.passes import weights

#: Rows that are looked at, the first ones.
_ROWS = 10_000
#: Nats per row above the best constant from which a network has learned something: a constant that was fitted
#: by steps is within that of the best.
LEAST_GAIN = 1e-3


@torch.no_grad()
def gain_over_constant(network: nn.Module, dataset: Dataset, mode: WeightMode) -> float:
    """Log-likelihood per training row, in nats, above that of the best constant prediction.

    ``mode`` says of what: the posterior mean, or the selected model at its means.

    For classes, counts and rates p of a row,

        mean log p(y | network) - mean log p(y | the training rows' mean),

    and for numbers, whose variance is not fixed, half of the logarithm of the ratio of mean squared errors,
    which is the same at the best variance of each. At or below zero the network is no better than a constant.
    """
    x, y = dataset.x_train[:_ROWS], dataset.y_train[:_ROWS]
    was_training = network.training
    # Not ``predict``, which warns of a median model without a path: what is said of it follows from the gain.
    with weights(mode):
        p = likelihood_of(network).mean(network.eval()(x)).double()
    network.train(was_training)
    y = y if dataset.likelihood == "categorical" else y.reshape(p.shape).double()
    if dataset.likelihood == "gaussian":
        error, spread = (p - y).square().mean(), (y - y.mean(0)).square().mean()
        return 0.5 * math.log(max(float(spread), 1e-30) / max(float(error), 1e-30))
    return float((_log_p(dataset, p, y) - _log_p(dataset, _constant(dataset, y), y)).mean())


def _constant(dataset: Dataset, y: Tensor) -> Tensor:
    if dataset.likelihood == "categorical":
        counts = torch.bincount(y, minlength=dataset.outputs).double()
        return (counts / counts.sum()).expand(len(y), -1)
    return y.mean(0, keepdim=True).expand_as(y)


def _log_p(dataset: Dataset, p: Tensor, y: Tensor) -> Tensor:
    tiny = 1e-12
    if dataset.likelihood == "categorical":
        return p.gather(-1, y.unsqueeze(-1)).clamp(min=tiny).log()
    if dataset.likelihood == "bernoulli":
        return y * p.clamp(min=tiny).log() + (1.0 - y) * (1.0 - p).clamp(min=tiny).log()
    return y * p.clamp(min=tiny).log() - p  # Poisson, without the term that both have
