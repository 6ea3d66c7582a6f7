"""How unsure a prediction is, and why, from the draws that ``predict(..., average=False)`` gives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def class_probabilities(p: Tensor) -> Tensor:
    """``[..., classes]`` from probabilities of any likelihood with classes.

    A last axis of one, as a Bernoulli likelihood has, is the probability of class 1: it becomes
    (1-p, p). A longer one must sum to 1: logits do not, nor do the labels of a multi-label model, each of
    which is a yes or no of its own (``p[..., k : k + 1]``).
    """
    if p.dim() == 0:
        raise ValueError("p is a single number; expected probabilities [..., classes]")
    if not p.dtype.is_floating_point:
        raise TypeError(f"p is {p.dtype}; expected probabilities of a floating dtype")
    if p.shape[-1] == 1:
        _check_range(p)
        return torch.cat((1.0 - p, p), -1)
    total = p.sum(-1, dtype=torch.float64)
    # Probabilities are rounded, and so are their averages.
    if p.numel() and bool(((total - 1.0).abs() > _SLACK.get(p.dtype, 1e-3)).any()):
        raise ValueError(
            f"p is {list(p.shape)} and its rows sum to {total.min().item():.4g} to {total.max().item():.4g}; "
            "expected probabilities of classes, which sum to 1. For several labels per observation, take "
            "one at a time, p[..., k : k + 1]; for logits, the softmax (fastlbbnn.predict gives probabilities)"
        )
    _check_range(p)
    return p


#: How far rows of probabilities may be from 1.
_SLACK = {torch.bfloat16: 3e-2, torch.float16: 1e-2}


def _check_range(p: Tensor) -> None:
    if p.numel() == 0:
        return
    low, high = p.min().item(), p.max().item()
    slack = _SLACK.get(p.dtype, 1e-3)
    if not (low >= -slack and high <= 1.0 + slack):
        raise ValueError(
            f"p is between {low:.4g} and {high:.4g}; expected probabilities (for logits, the softmax or the "
            "sigmoid: fastlbbnn.predict gives probabilities)"
        )


def entropy(p: Tensor) -> Tensor:
    """``-sum_c p_c log p_c`` in nats: [..., classes] -> [...]. A probability of zero adds nothing."""
    return torch.special.entr(class_probabilities(p)).sum(-1)


class EntropyParts(NamedTuple):
    """total = expected + mutual_information, each [n], in nats."""

    total: Tensor  # entropy of the averaged prediction
    expected: Tensor  # mean entropy of the draws: noise that no model could explain
    mutual_information: Tensor  # between class and model: what the draws disagree on


def entropy_parts(draws: Tensor) -> EntropyParts:
    """Split the uncertainty of classes. ``draws``: probabilities [R, n, classes] (or [R, n, 1]).

        total              = H(pbar),  pbar = mean_r p_r
        expected           = mean_r H(p_r)
        mutual information = mean_r KL(p_r || pbar)

    The last is computed as it stands rather than as the difference of the first two: where the draws
    agree, the difference would be rounding error.
    """
    p = class_probabilities(_draws(draws))
    average = p.mean(0)
    # p log(p / pbar), with 0 log 0 = 0. pbar = 0 only where all p_r are; 1 stands in there.
    log_ratio = torch.where(p > 0.0, p, 1.0).log() - torch.where(average > 0.0, average, 1.0).log()
    divergence = (p * torch.where(p > 0.0, log_ratio, 0.0)).sum(-1)
    return EntropyParts(entropy(average), entropy(p).mean(0), divergence.mean(0).clamp_min(0.0))


class VarianceParts(NamedTuple):
    """total = noise + model, each like one draw of the means."""

    total: Tensor  # variance of a response under the averaged prediction
    noise: Tensor  # mean variance of the responses about their means
    model: Tensor  # variance of the means between draws


def variance_parts(means: Tensor, noise: Tensor | float) -> VarianceParts:
    """Split the variance of responses by the law of total variance.

    Args:
        means: of the responses, one draw of the network each: [R, n, ...].
        noise: variance of the responses about them (``likelihood.variance``), broadcast to ``means``.

    The averaged prediction is a mixture of the R draws, and this is its exact variance: the means'
    variance divides by R, not R - 1.
    """
    means = _draws(means)
    spread = means.var(0, correction=0)
    noise = torch.as_tensor(noise, dtype=means.dtype, device=means.device)
    noise = noise.broadcast_to(means.shape).mean(0)
    return VarianceParts(noise + spread, noise, spread)


def _draws(draws: Tensor) -> Tensor:
    if draws.dim() < 2 or draws.shape[0] == 0:
        raise ValueError(
            f"draws are {list(draws.shape)}; expected [R, n, ...] with at least one draw, as "
            "predict(..., average=False) gives"
        )
    return draws
