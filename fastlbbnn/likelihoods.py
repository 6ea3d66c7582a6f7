"""Negative log-likelihoods of a network's outputs, summed over observations."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def categorical(output: Tensor, target: Tensor) -> Tensor:
    """``output``: logits [M, classes]; ``target``: class indices [M]."""
    return F.cross_entropy(output, target, reduction="sum")


def bernoulli(output: Tensor, target: Tensor) -> Tensor:
    """``output``: logits; ``target``: 0 or 1, same shape (a last axis of one may be left out)."""
    return F.binary_cross_entropy_with_logits(output, _like(output, target), reduction="sum")


def gaussian(output: Tensor, target: Tensor, variance: float = 1.0) -> Tensor:
    """``output``: means; ``target``: values, same shape; known ``variance``."""
    if variance <= 0.0:
        raise ValueError(f"variance={variance}; expected a positive number")
    square = (output - _like(output, target)).square().sum()
    return 0.5 * (square / variance + target.numel() * math.log(2.0 * math.pi * variance))


def poisson(output: Tensor, target: Tensor) -> Tensor:
    """``output``: log rates; ``target``: counts, same shape. Includes log(count!)."""
    target = _like(output, target)
    return (output.exp() - target * output + (target + 1.0).lgamma()).sum()


LIKELIHOODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "categorical": categorical,
    "bernoulli": bernoulli,
    "gaussian": gaussian,
    "poisson": poisson,
}


def negative_log_likelihood(
    output: Tensor, target: Tensor, likelihood: str | Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """The sum over observations, by name or by a function of one's own (which gives log p)."""
    if callable(likelihood):
        return -likelihood(output, target).sum()
    if likelihood not in LIKELIHOODS:
        names = ", ".join(repr(name) for name in LIKELIHOODS)
        raise ValueError(f"likelihood={likelihood!r}; expected one of {names}, or a function")
    return LIKELIHOODS[likelihood](output, target)


def _like(output: Tensor, target: Tensor) -> Tensor:
    if target.dim() == output.dim() - 1 and output.shape[-1] == 1:
        target = target.unsqueeze(-1)
    if target.shape != output.shape:
        raise ValueError(
            f"output is {list(output.shape)} and target {list(target.shape)}; expected one shape"
        )
    return target.to(output.dtype)
