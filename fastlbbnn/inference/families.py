"""The paper's exponential family: classes, yes or no, numbers, counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.cross_entropy import cross_entropy
from .likelihoods import (
    LIKELIHOODS,
    Likelihood,
    align,
    check_not_nan,
    checks_are_cheap,
    fit_values,
    sum_events,
)

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@LIKELIHOODS.register("categorical")
class Categorical(Likelihood):
    """Classes; the outputs are logits [..., n, classes] and targets class indices [n].

    Sequences have outputs [..., n, steps, classes] and targets [n, steps].
    """

    name = "categorical"
    classes = True

    def fit(self, output: Tensor, target: Tensor) -> Tensor:
        if target.dtype not in _INTEGERS:
            raise TypeError(f"target is {target.dtype}; expected class indices, int64 (target.long())")
        if target.shape != output.shape[:-1] or output.dim() < 2:
            advice = ""
            if target.shape == (*output.shape[:-1], 1):
                advice = " (target.squeeze(-1))"
            elif target.shape == output.shape and output.dim() > 1:
                advice = " (for one column per class, target.argmax(-1); for several labels, 'bernoulli')"
            raise ValueError(
                f"output is {list(output.shape)} and target {list(target.shape)}; expected logits "
                f"[n, classes] and class indices {list(output.shape[:-1])}{advice}"
            )
        _several_columns(output)
        return target.long()

    def check_values(self, output: Tensor, target: Tensor) -> None:
        count = output.shape[-1]
        if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < count:
            low, high = int(target.min()), int(target.max())
            advice = " (they seem to count from 1: target - 1)" if (low, high) == (1, count) else ""
            raise ValueError(
                f"class labels are between {low} and {high}; expected 0 to {count - 1}, as the model has "
                f"{count} outputs{advice}"
            )

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        if (
            target.dtype is not torch.int64 or output.dim() != 2 or target.shape != output.shape[:1]
            or output.shape[1] < 2
        ):
            target = self.fit(output, target).flatten()
            output = output.flatten(0, -2)
        try:
            return cross_entropy(output, target)
        except IndexError:
            self.check_values(output, target)
            raise

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        axes = target.dim()
        if axes < 1 or target.shape != output.shape[-1 - axes : -1]:
            raise ValueError(
                f"output is {list(output.shape)} and target {list(target.shape)}; expected logits "
                "[..., n, classes] and class indices [n]"
            )
        _several_columns(output)
        chosen = target.long().expand(output.shape[:-1]).unsqueeze(-1)
        log_p = output.log_softmax(-1).gather(-1, chosen).squeeze(-1)
        return log_p if axes == 1 else log_p.flatten(1 - axes).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        _several_columns(output)
        return output.softmax(-1)

    def variance(self, output: Tensor) -> Tensor:
        p = self.mean(output)
        return p * (1.0 - p)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        rows = self.mean(output).reshape(-1, output.shape[-1])
        return torch.multinomial(rows, 1, generator=generator).view(output.shape[:-1])


def _several_columns(output: Tensor) -> None:
    if output.shape[-1] < 2:
        raise ValueError(
            f"output is {list(output.shape)}: among {output.shape[-1]} classes there is nothing to choose; "
            "expected a logit per class (with one output: likelihood='bernoulli' for yes or no, 'gaussian' "
            "for numbers, 'poisson' for counts)"
        )


@LIKELIHOODS.register("bernoulli")
class Bernoulli(Likelihood):
    """Yes or no, one or more per observation; the outputs are logits of yes, targets 0 or 1."""

    name = "bernoulli"
    classes = True

    def check_values(self, output: Tensor, target: Tensor) -> None:
        check_not_nan("target", target)
        if target.numel() and bool(((target < 0) | (target > 1)).any()):
            raise ValueError(
                f"targets are between {target.min().item():g} and {target.max().item():g}; expected 0 (no) "
                "or 1 (yes)"
            )

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        target = fit_values(output, target)
        if checks_are_cheap(target):
            self.check_values(output, target)
        return F.binary_cross_entropy_with_logits(output, target, reduction="sum")

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        target = align(output, target)
        terms = F.binary_cross_entropy_with_logits(output, target.expand_as(output), reduction="none")
        return -sum_events(terms, target)

    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def variance(self, output: Tensor) -> Tensor:
        return output.sigmoid() * (-output).sigmoid()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(output.sigmoid(), generator=generator)


@LIKELIHOODS.register("gaussian")
class Gaussian(Likelihood):
    """Values with a known variance (a number, or a tensor that broadcasts to the outputs, their means)."""

    name = "gaussian"

    def __init__(self, variance: float | Sequence[float] | Tensor = 1.0) -> None:
        self._variance = torch.as_tensor(variance)
        if not (self._variance > 0.0).all():
            raise ValueError(f"variance={variance}; expected a positive number")
        #: The number, where it is one.
        self._single = self._variance.item() if self._variance.dim() == 0 else None

    def to_config(self) -> dict[str, Any]:
        return {"name": self.name, "variance": self._variance.tolist()}

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        square = (output - fit_values(output, target)).square()
        if self._single is not None:
            constant = target.numel() * math.log(2.0 * math.pi * self._single)
            return 0.5 * (square.sum() / self._single + constant)
        variance = self.variance(output)
        return 0.5 * (square / variance + (2.0 * math.pi * variance).log()).sum()

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        variance, target = self.variance(output), align(output, target)
        square = (output - target).square()
        return -0.5 * sum_events(square / variance + (2.0 * math.pi * variance).log(), target)

    def mean(self, output: Tensor) -> Tensor:
        return output

    def variance(self, output: Tensor) -> Tensor:
        return self._variance.to(output).expand_as(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)
        return output + self.variance(output).sqrt() * noise


@LIKELIHOODS.register("poisson")
class Poisson(Likelihood):
    """Counts; the outputs are log rates."""

    name = "poisson"

    def check_values(self, output: Tensor, target: Tensor) -> None:
        check_not_nan("target", target)
        if target.numel() and bool((target < 0).any()):
            raise ValueError(
                f"the smallest target is {target.min().item():g}; expected counts, 0 or more "
                "(likelihood='gaussian' takes any numbers)"
            )

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        target = fit_values(output, target)
        if checks_are_cheap(target):
            self.check_values(output, target)
        return -_poisson_terms(output, target).sum()

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        target = align(output, target)
        return sum_events(_poisson_terms(output, target), target)

    def mean(self, output: Tensor) -> Tensor:
        return output.exp()

    def variance(self, output: Tensor) -> Tensor:
        return output.exp()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(output.exp(), generator=generator)


def _poisson_terms(output: Tensor, target: Tensor) -> Tensor:
    # A negative count has no probability; where values cannot be looked at it makes the loss nan.
    log_factorial = torch.where(target < 0.0, math.nan, target + 1.0).lgamma()
    return target * output - output.exp() - log_factorial
