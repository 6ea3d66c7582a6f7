"""What stands in for the weights of a Bayesian layer in a forward pass."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._util.checks import check_samples


class WeightMode(str, Enum):
    """The paper's ways to use the posterior; its names for them are in brackets."""

    #: Relaxed gates, sampled weights, gradients for everything: training.
    RELAXED = "relaxed"
    #: Indicators and weights drawn from the posterior [SIM SIM].
    SAMPLED = "sampled"
    #: Posterior mean, alpha * kappa [ALL MEA].
    MEAN = "mean"
    #: The median probability model (alpha > 0.5), weights drawn [MED SIM].
    MEDIAN = "median"
    #: The median probability model at its means [MED MEA].
    MEDIAN_MEAN = "median-mean"

    @property
    def random(self) -> bool:
        """Whether two passes differ."""
        return self is not WeightMode.MEAN and self is not WeightMode.MEDIAN_MEAN


class Pass(NamedTuple):
    """How Bayesian layers behave in the current forward pass."""

    mode: WeightMode | None = None  # None: RELAXED in train(), MEAN in eval()
    samples: int | None = None  # None: one draw, no sample axis
    generator: torch.Generator | None = None  # None: torch's default
    threshold: float = 0.5  # of the median model
    kl: Literal["closed", "sampled"] = "closed"  # which five sums a sampling layer leaves
    structures: dict[Any, Tensor] | None = None  # layer -> its median model; None: found in every pass


_current = Pass()


def current_pass() -> Pass:
    return _current


class weights:
    """Override, for all Bayesian layers called within, what ``train()`` and ``eval()`` imply.

    Used as ``with weights("sampled", samples=10): ...``.

    Args:
        mode: a ``WeightMode`` or its value ("sampled", "mean", ...); None keeps the layer's own.
        samples: draws in one call. The first axis of every input and output is then the sample axis;
            ``fastlbbnn.expand_samples`` adds it to the data.
        generator: where seeds come from.
        threshold: inclusion probability above which the median model keeps a weight.
        kl: "closed" (default) integrates indicators and weights out of the KL; "sampled" is the
            paper's log q - log p at the draw, computed in plain PyTorch.
        keep_structure: the passes within that draw from the median model find it once. For training it on
            while inclusion probabilities stay as they are: those of dependent indicators are an integral
            each, which takes many times as long as the rest of a step.
    """

    def __init__(
        self,
        mode: WeightMode | str | None = None,
        *,
        samples: int | None = None,
        generator: torch.Generator | None = None,
        threshold: float | None = None,
        kl: Literal["closed", "sampled"] | None = None,
        keep_structure: bool = False,
    ) -> None:
        if mode is not None:
            try:
                mode = WeightMode(mode)
            except ValueError:
                names = ", ".join(repr(m.value) for m in WeightMode)
                raise ValueError(f"mode={mode!r} is not known; expected one of {names}") from None
        if samples is not None:
            check_samples(samples)
        if threshold is not None and not 0.0 <= threshold < 1.0:
            raise ValueError(f"threshold={threshold}; expected a probability in [0, 1)")
        if kl not in (None, "closed", "sampled"):
            raise ValueError(f"kl={kl!r}; expected 'closed' or 'sampled'")
        structures = {} if keep_structure else None
        self._changes = (mode, samples, generator, threshold, kl, structures)

    def __enter__(self) -> None:
        global _current
        self._outer = _current
        _current = Pass(
            *(old if new is None else new for old, new in zip(self._outer, self._changes))
        )

    def __exit__(self, *_: object) -> None:
        global _current
        _current = self._outer


def expand_samples(x: Tensor, samples: int) -> Tensor:
    """``[...] -> [samples, ...]`` without a copy; layers see that the samples share x."""
    check_samples(samples)
    return x.unsqueeze(0).expand(samples, *x.shape)
