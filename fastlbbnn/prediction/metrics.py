"""How good predictions are. Everything is a mean over observations, as a Python float.

Class probabilities ``p`` are [n, classes], or [n, 1] for a Bernoulli likelihood (then of class 1), as
``predict`` gives them; labels ``y`` are ints [n] (or [n, 1]).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._util.checks import check_positive_int
from .uncertainty import class_probabilities, entropy

#: A prediction below this probability is a doubt, in the paper's tables.
DOUBT_THRESHOLD = 0.95


# --- decisions ------------------------------------------------------------------------------------


def decide(p: Tensor, threshold: float = DOUBT_THRESHOLD) -> Tensor:
    """The most probable class where its probability is at least ``threshold``, else -1: a doubt.

    Args:
        p: class probabilities [..., classes].
        threshold: in [0, 1]; 0 never doubts.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold={threshold}; expected a probability in [0, 1]")
    confidence, chosen = class_probabilities(p).max(-1)
    return torch.where(confidence >= threshold, chosen, -1)


class Doubt(NamedTuple):
    """What is left when doubts are not counted."""

    accuracy: float  # among the classified; nan if there are none
    count: int  # type: ignore[assignment]  # how many were classified


def doubt_accuracy(p: Tensor, y: Tensor, threshold: float = DOUBT_THRESHOLD) -> Doubt:
    """Accuracy among the observations that ``decide`` classifies, and how many those are."""
    p, y = _classification(p, y)
    decided = decide(p, threshold)
    count = int((decided >= 0).sum())
    correct = int((decided == y).sum())
    return Doubt(correct / count if count else math.nan, count)


def accuracy(p: Tensor, y: Tensor) -> float:
    """Share of observations whose most probable class is the right one (the first of several)."""
    p, y = _classification(p, y)
    return (p.argmax(-1) == y).double().mean().item()


# --- probabilities --------------------------------------------------------------------------------


def nll(p: Tensor, y: Tensor) -> float:
    """``-mean log p_y`` in nats, of classes.

    A probability that has underflowed to zero counts as the smallest normal number of its dtype (87 nats
    in float32), so that one such observation does not make all models equally bad. From draws of
    log-probabilities, ``nll_of_draws`` needs no such floor; it also serves regression and counts.
    """
    p, y = _classification(p, y)
    chosen = p.gather(-1, y[:, None]).clamp_min(torch.finfo(p.dtype).tiny)
    return -chosen.double().log().mean().item()


def nll_of_draws(log_prob: Tensor) -> float:
    """``-mean_i log mean_r p(y_i | w_r)`` in nats, from log-probabilities [R, n]."""
    if log_prob.dim() != 2 or log_prob.numel() == 0:
        raise ValueError(f"log_prob is {list(log_prob.shape)}; expected [R, n], neither of them 0")
    density = torch.logsumexp(log_prob.double(), 0) - math.log(log_prob.shape[0])
    return -density.mean().item()


def brier(p: Tensor, y: Tensor) -> float:
    """Brier's score ``mean_i sum_c (p_ic - [y_i = c])^2``, between 0 and 2.

    For two classes this is twice the mean of (p - y)^2, which some call the Brier score.
    """
    p, y = _classification(p, y)
    hot = torch.zeros_like(p).scatter_(-1, y[:, None], 1.0)
    return (p - hot).double().square().sum(-1).mean().item()


class Calibration(NamedTuple):
    """Observations by the confidence of their prediction; one entry per bin."""

    edges: Tensor  # [bins + 1]
    count: Tensor  # type: ignore[assignment]  # [bins + 1]: the last is for a confidence of exactly 1
    confidence: Tensor  # [bins + 1], the bin's mean; nan where it is empty
    accuracy: Tensor  # [bins + 1], likewise


def calibration(p: Tensor, y: Tensor, bins: int = 15) -> Calibration:
    """Confidence (the largest probability) against accuracy, in bins of equal width on [0, 1].

    A bin holds its lower edge and not its upper one. Predictions with a confidence of exactly 1 say that
    they cannot be wrong and have a bin of their own, the last (as in torchmetrics).
    """
    check_positive_int("bins", bins)
    p, y = _classification(p, y)
    confidence, chosen = p.max(-1)
    edges = torch.linspace(0.0, 1.0, bins + 1, dtype=p.dtype, device=p.device)
    # Averaged probabilities can pass 1 by a rounding error.
    place = (torch.bucketize(confidence, edges, right=True) - 1).clamp(0, bins)

    def total(values: Tensor) -> Tensor:
        return torch.zeros(bins + 1, dtype=torch.float64, device=p.device).index_add_(
            0, place, values.double()
        )

    count = total(torch.ones_like(confidence))
    return Calibration(
        edges, count.long(), total(confidence) / count, total(chosen == y) / count
    )


def ece(p: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: mean |accuracy - confidence| of the bins, weighted by their counts."""
    c = calibration(p, y, bins)
    gap = (c.accuracy - c.confidence).abs().nan_to_num(0.0)
    return ((c.count * gap).sum() / c.count.sum()).item()


# --- values ---------------------------------------------------------------------------------------


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error of predicted means; shapes agree but for a last axis of one."""
    if mean.dim() == y.dim() + 1 and mean.shape[-1] == 1:
        mean = mean.squeeze(-1)
    if mean.shape != y.shape:
        raise ValueError(f"mean is {list(mean.shape)} and y {list(y.shape)}; expected one shape")
    if y.numel() == 0:
        raise ValueError("no observations; expected at least one")
    return (mean.double() - y.double()).square().mean().sqrt().item()


# --- out of domain --------------------------------------------------------------------------------


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How well a score tells data apart: P(outside > inside) + P(equal)/2 for a pair at random.

    With entropies as scores, 1 means that every foreign image is less certain than every known one and
    0.5 that entropy says nothing.
    """
    inside, outside = inside.flatten(), outside.flatten()
    if inside.numel() == 0 or outside.numel() == 0:
        raise ValueError(
            f"{inside.numel()} scores inside and {outside.numel()} outside; expected some of both"
        )
    if inside.isnan().any() or outside.isnan().any():
        raise ValueError("a score is nan; expected numbers that can be ordered")
    ordered = inside.sort().values
    below = torch.searchsorted(ordered, outside, right=False)
    up_to = torch.searchsorted(ordered, outside, right=True)
    pairs = inside.numel() * outside.numel()
    return int(below.sum() + up_to.sum()) / (2 * pairs)


class ECDF(NamedTuple):
    """An empirical distribution function: ``share`` of the values are at most ``value``."""

    value: Tensor  # ascending, without repetition
    share: Tensor

    def __call__(self, at: Tensor) -> Tensor:
        """The share of values that are at most ``at``."""
        place = torch.searchsorted(self.value, at.to(self.value), right=True)
        return torch.cat((self.share.new_zeros(1), self.share))[place]


def ecdf(values: Tensor) -> ECDF:
    """The empirical distribution function of ``values``, of any shape."""
    if values.numel() == 0:
        raise ValueError("no values; expected at least one")
    value, counts = values.flatten().unique(sorted=True, return_counts=True)
    return ECDF(value, counts.cumsum(0).double() / values.numel())


def entropy_ecdf(p: Tensor) -> ECDF:
    """The ECDF of the entropies of averaged predictions ``p`` [n, classes]: the paper's out-of-domain figure."""
    return ecdf(entropy(p))


def _classification(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [n, classes] and labels [n] that fit them."""
    p = class_probabilities(p)
    if y.dim() == 2 and y.shape[-1] == 1:
        y = y.squeeze(-1)
    if p.dim() != 2 or y.dim() != 1 or len(p) != len(y):
        raise ValueError(
            f"p is {list(p.shape)} and y {list(y.shape)}; expected probabilities [n, classes] and labels [n]"
        )
    if len(y) == 0:
        raise ValueError("no observations; expected at least one")
    if not p.dtype.is_floating_point:
        raise TypeError(f"p is {p.dtype}; expected probabilities of a floating dtype")
    y = y.long()
    if int(y.min()) < 0 or int(y.max()) >= p.shape[-1]:
        raise ValueError(
            f"labels are between {int(y.min())} and {int(y.max())}; expected 0 to {p.shape[-1] - 1}, as "
            f"p has {p.shape[-1]} classes"
        )
    return p, y
