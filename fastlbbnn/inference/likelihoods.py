"""The paper's exponential family: how observations depend on a network's outputs.

Each likelihood is known by a name ("categorical", "bernoulli", "gaussian", "poisson") and as an object that
also says what predictions need: the mean of a response, its variance, its log-probability, and how to draw
one. ``fastlbbnn.GaussianDispersion`` is the Gaussian whose variance is learned.

Outputs are ``[..., n, outputs]``, with any sample axes in front; targets have no sample axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .._util.dtypes import HALF

# --- negative log-likelihoods, summed: what training needs ----------------------------------------


def categorical(output: Tensor, target: Tensor) -> Tensor:
    """``output``: logits [M, classes]; ``target``: class indices [M]."""
    if target.dtype.is_floating_point:
        raise TypeError(f"target is {target.dtype}; expected class indices, int64 (target.long())")
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
    """The sum over observations, by name or by a function of one's own (which gives log p).

    In float32 for a network that computes in half precision: a sum over a batch needs its digits.
    """
    if output.dtype in HALF:
        output = output.float()
    if callable(likelihood):
        return -likelihood(output, target).sum()
    _check_name(likelihood)
    return LIKELIHOODS[likelihood](output, target)


def _check_name(likelihood: object) -> None:
    if likelihood not in LIKELIHOODS:
        names = ", ".join(repr(name) for name in LIKELIHOODS)
        raise ValueError(f"likelihood={likelihood!r}; expected one of {names}, or a function")


def _like(output: Tensor, target: Tensor) -> Tensor:
    if target.dim() == output.dim() - 1 and output.shape[-1] == 1:
        target = target.unsqueeze(-1)
    if target.shape != output.shape:
        raise ValueError(
            f"output is {list(output.shape)} and target {list(target.shape)}; expected one shape"
        )
    return target.to(output.dtype)


# --- objects: what prediction needs ---------------------------------------------------------------


def fit_target(output: Tensor, target: Tensor) -> Tensor:
    """``target`` as [n, outputs], to broadcast to ``output`` [..., n, outputs], in its dtype."""
    if target.dim() == 1 and output.shape[-1] == 1:
        target = target.unsqueeze(-1)
    if output.dim() < 2 or target.shape != output.shape[-2:]:
        raise ValueError(
            f"output is {list(output.shape)} and target {list(target.shape)}; expected output "
            "[..., n, outputs] and target [n, outputs] (or [n] for one output)"
        )
    return target.to(output.dtype)


class Likelihood:
    """How an observation depends on the network's outputs for it.

    Called with outputs and targets it gives the log-likelihoods whose sum ``fastlbbnn.elbo`` estimates, so
    an object serves as ``elbo(..., likelihood=...)`` as well as its name does.
    """

    #: Whether responses are classes, which have probabilities but no order.
    classes = False

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.log_prob(output, target)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability (or density) of each observation: [..., n, outputs], target -> [..., n]."""
        raise NotImplementedError

    def mean(self, output: Tensor) -> Tensor:
        """Mean of the response, [..., n, outputs]; of classes their probabilities."""
        raise NotImplementedError

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the response about its mean, [..., n, outputs]."""
        raise NotImplementedError

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One response for each row of outputs: [..., n, outputs], of classes their indices [..., n]."""
        raise NotImplementedError

    def draw(self, samples: int, generator: torch.Generator | None = None) -> Likelihood:
        """With parameters drawn from their posterior, one for each entry of a leading sample axis.

        Likelihoods without parameters of their own are returned as they are.
        """
        return self

    def plug_in(self) -> Likelihood:
        """With parameters at a point estimate."""
        return self


class Categorical(Likelihood):
    """Classes; the outputs are logits [..., n, classes] and targets class indices [n]."""

    classes = True

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        if target.shape != output.shape[-2:-1]:
            raise ValueError(
                f"output is {list(output.shape)} and target {list(target.shape)}; expected logits "
                "[..., n, classes] and class indices [n]"
            )
        chosen = target.long().expand(output.shape[:-1]).unsqueeze(-1)
        return output.log_softmax(-1).gather(-1, chosen).squeeze(-1)

    def mean(self, output: Tensor) -> Tensor:
        return output.softmax(-1)

    def variance(self, output: Tensor) -> Tensor:
        p = output.softmax(-1)
        return p * (1.0 - p)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        rows = output.softmax(-1).reshape(-1, output.shape[-1])
        return torch.multinomial(rows, 1, generator=generator).view(output.shape[:-1])


class Bernoulli(Likelihood):
    """Yes or no, one or more an observation; the outputs are logits of yes."""

    classes = True

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        target = fit_target(output, target).expand_as(output)
        return -F.binary_cross_entropy_with_logits(output, target, reduction="none").sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def variance(self, output: Tensor) -> Tensor:
        return output.sigmoid() * (-output).sigmoid()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(output.sigmoid(), generator=generator)


class Gaussian(Likelihood):
    """Values with a known variance (a number, or a tensor that broadcasts to the outputs, their means)."""

    def __init__(self, variance: float | Tensor = 1.0) -> None:
        self._variance = torch.as_tensor(variance)
        if not (self._variance > 0.0).all():
            raise ValueError(f"variance={variance}; expected a positive number")

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        variance = self.variance(output)
        square = (output - fit_target(output, target)).square()
        return -0.5 * (square / variance + (2.0 * math.pi * variance).log()).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        return output

    def variance(self, output: Tensor) -> Tensor:
        return self._variance.to(output).expand_as(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)
        return output + self.variance(output).sqrt() * noise


class Poisson(Likelihood):
    """Counts; the outputs are log rates."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        target = fit_target(output, target)
        return (target * output - output.exp() - (target + 1.0).lgamma()).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        return output.exp()

    def variance(self, output: Tensor) -> Tensor:
        return output.exp()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(output.exp(), generator=generator)


_OBJECTS: dict[str, Likelihood] = {
    "categorical": Categorical(),
    "bernoulli": Bernoulli(),
    "gaussian": Gaussian(),
    "poisson": Poisson(),
}


def as_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """The object of a name; an object is returned as it is."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if callable(likelihood):
        raise TypeError(
            f"likelihood is a {type(likelihood).__name__}, which says nothing about responses; for "
            "predictions, expected a name or a fastlbbnn.inference.likelihoods.Likelihood"
        )
    _check_name(likelihood)
    return _OBJECTS[likelihood]
