"""Selection beyond the median: WAIC, DIC, held-out likelihood, and the most probable model.

The information criteria are on the scale of the deviance, -2 log p: the smaller the better.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..inference.likelihoods import Likelihood
from ..nn.inclusion import MeanField, RandomLogits
from ..nn.layer import bayesian_layers
from ..nn.linear import _CERTAIN, BayesianLinear
from ..nn.modes import WeightMode
from ..prediction.metrics import nll_of_draws
from ..prediction.predict import log_prob_draws
from ..structure.density import density
from .most_probable import most_probable_signs
from .paths import is_connected
from .thresholds import connecting_threshold

CriterionName = Literal["waic", "dic", "nll"]

#: Thresholds that are compared.
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Criterion(NamedTuple):
    """A criterion and the number of parameters that it finds in use (nan for "nll")."""

    value: float
    effective_parameters: float


def waic(log_prob: Tensor) -> Criterion:
    """Watanabe's criterion from log-probabilities [R, n] of R draws.

        lppd   = sum_i log mean_r p(y_i | w_r)
        p_waic = sum_i var_r log p(y_i | w_r)          (dividing by R - 1)
        WAIC   = -2 (lppd - p_waic)
    """
    log_prob = _draws(log_prob, 2)
    lppd = (torch.logsumexp(log_prob, 0) - math.log(len(log_prob))).sum()
    effective = log_prob.var(0).sum()
    return Criterion((-2.0 * (lppd - effective)).item(), effective.item())


def dic(log_prob: Tensor, at_mean: Tensor) -> Criterion:
    """The deviance information criterion, from log-probabilities [R, n] and those at the means [n].

        D(w) = -2 sum_i log p(y_i | w)
        p_D  = mean_r D(w_r) - D(mean w)
        DIC  = D(mean w) + 2 p_D
    """
    log_prob = _draws(log_prob, 1)
    if at_mean.numel() != log_prob.shape[1]:
        raise ValueError(
            f"log_prob is {list(log_prob.shape)} and at_mean {list(at_mean.shape)}; expected [R, n] and [n]"
        )
    at_means = -2.0 * at_mean.double().sum()
    effective = -2.0 * log_prob.sum(1).mean() - at_means
    return Criterion((at_means + 2.0 * effective).item(), effective.item())


def _draws(log_prob: Tensor, least: int) -> Tensor:
    if log_prob.dim() != 2 or log_prob.shape[1] == 0 or len(log_prob) < least:
        raise ValueError(
            f"log_prob is {list(log_prob.shape)}; expected [R, n] with R at least {least} "
            "(fastlbbnn.prediction.predict.log_prob_draws)"
        )
    return log_prob.double()


#: Mode that draws -> its means.
_MEANS = {WeightMode.SAMPLED: WeightMode.MEAN, WeightMode.MEDIAN: WeightMode.MEDIAN_MEAN}


def criterion_of(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: CriterionName = "waic",
    *,
    mode: WeightMode | str = WeightMode.MEDIAN,
    threshold: float = 0.5,
    likelihood: str | Likelihood | None = None,
    samples: int = 100,
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Criterion:
    """A criterion of a network.

    Args:
        x, y: the training data for "waic" and "dic", which allow for having seen them; data that were held
            out for "nll", the mean negative log predictive density in nats.
        mode: "median" is the model selected at ``threshold``, "sampled" all models averaged.
        samples: draws of the network.
    """
    mode = WeightMode(mode)
    if mode not in _MEANS:
        raise ValueError(f"mode={mode.value!r}; expected a mode that draws, 'median' or 'sampled'")
    if criterion not in ("waic", "dic", "nll"):
        raise ValueError(f"criterion={criterion!r}; expected 'waic', 'dic' or 'nll'")
    arguments: dict[str, Any] = {"threshold": threshold, "likelihood": likelihood, "batch_size": batch_size}
    drawn = log_prob_draws(model, x, y, mode=mode, samples=samples, generator=generator, **arguments)
    if criterion == "waic":
        return waic(drawn)
    if criterion == "dic":
        return dic(drawn, log_prob_draws(model, x, y, mode=_MEANS[mode], **arguments)[0])
    return Criterion(nll_of_draws(drawn), math.nan)


class ThresholdRow(NamedTuple):
    """One threshold that was tried."""

    threshold: float
    density: float
    criterion: Criterion


class ThresholdChoice(NamedTuple):
    """The best threshold, and all that were compared, in ascending order."""

    threshold: float
    rows: tuple[ThresholdRow, ...]


def best_threshold(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: CriterionName = "waic",
    grid: Sequence[float] = THRESHOLDS,
    *,
    likelihood: str | Likelihood | None = None,
    samples: int = 100,
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
) -> ThresholdChoice:
    """The threshold of the grid whose selected model has the best criterion; among equals, the sparsest.

    Thresholds that leave no path from an input to an output are not candidates; ValueError if that is all
    of them. All candidates see the same noise. Arguments: ``criterion_of``.
    """
    candidates = sorted({float(t) for t in grid})
    if not candidates:
        raise ValueError("grid is empty; expected thresholds to compare")
    connected = [t for t in candidates if is_connected(model, t)]
    if not connected:
        raise ValueError(
            f"none of the thresholds {candidates} leaves a path from an input to an output; the largest "
            f"that does is {connecting_threshold(model, candidates[0]):.6g}"
        )
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    rows = []
    for threshold in connected:
        found = criterion_of(
            model, x, y, criterion, threshold=threshold, likelihood=likelihood, samples=samples,
            batch_size=batch_size, generator=torch.Generator().manual_seed(seed),
        )
        rows.append(ThresholdRow(threshold, density(model, "median", threshold), found))
    best = min(rows, key=lambda row: (row.criterion.value, -row.threshold))
    return ThresholdChoice(best.threshold, tuple(rows))


# --- the most probable model ----------------------------------------------------------------------


class MostProbableModel(NamedTuple):
    """The indicators of every Bayesian layer in order, bool on its grid of blocks (None without)."""

    indicators: list[Tensor | None]
    log_probability: float  # log q(gamma) in nats; Laplace's approximation where logits are random


@torch.no_grad()
def most_probable_model(
    model: nn.Module, *, starts: int = 0, generator: torch.Generator | None = None
) -> MostProbableModel:
    """The structure gamma with the largest posterior probability q(gamma).

    With independent indicators this is exact, and the median probability model: every factor of
    q(gamma) = prod alpha^gamma (1-alpha)^(1-gamma) is largest by itself.

    With random logits, q(gamma) = E prod sigmoid(s omega) over omega ~ N(xi, Sigma), s = 2 gamma - 1, and its
    maximum can differ from the median model. It is searched for from the median model, by changes of
    indicators that make gamma more probable (``most_probable.most_probable_signs``), so it is at least as
    probable as that, and a local maximum; both to the accuracy of Laplace's approximation to q. ``starts``
    more searches, from the signs of draws of omega, find better maxima where logits depend strongly. Rows
    that are independent are searched apart. A row of K inputs takes some 10 K^3 operations, so that layers
    of many hundred inputs take minutes.

    ``with_structure(model, result.indicators)`` is a network with this structure.
    """
    indicators: list[Tensor | None] = []
    total = 0.0
    for layer in bayesian_layers(model):
        inclusion = getattr(layer, "inclusion", None)
        if inclusion is None:
            indicators.append(None)
        elif inclusion.random:
            chosen, log_q = _most_probable_random(inclusion, starts, generator)
            indicators.append(chosen)
            total += log_q
        else:
            omega = inclusion.location()
            indicators.append(omega > 0.0)
            total += nn.functional.logsigmoid(omega.double().abs()).sum().item()
    return MostProbableModel(indicators, total)


def _most_probable_random(
    inclusion: RandomLogits, starts: int, generator: torch.Generator | None
) -> tuple[Tensor, float]:
    xi = inclusion.location()
    options: dict[str, Any] = {"starts": starts, "generator": generator}
    if inclusion.over == "layer":  # all indicators depend on each other: one long row
        signs, log_q = most_probable_signs(xi.flatten(), inclusion.covariance(), **options)
        return (signs > 0.0).view_as(xi), log_q
    rows = [most_probable_signs(xi[i], inclusion.row_covariance(i), **options) for i in range(len(xi))]
    return torch.stack([signs > 0.0 for signs, _ in rows]), sum(log_q for _, log_q in rows)


@torch.no_grad()
def with_structure(model: nn.Module, indicators: Sequence[Tensor | None]) -> nn.Module:
    """A copy of the network whose indicators are certain: in where ``indicators`` are True, else out.

    Its posterior of the weights is as before. ``predict``, ``select`` and further training apply to the copy
    as to any network; its inclusion probabilities are 0 and 1.

    Args:
        indicators: one bool tensor per Bayesian layer, on its grid of blocks; None for layers without.
    """
    model = copy.deepcopy(model)
    layers = bayesian_layers(model)
    if len(layers) != len(indicators):
        raise ValueError(f"{len(indicators)} entries for {len(layers)} layers; expected one per layer")
    for layer, chosen in zip(layers, indicators):
        inclusion = getattr(layer, "inclusion", None)
        if (inclusion is None) != (chosen is None):
            raise ValueError(f"indicators go with layers that have some, and with no others: {layer}")
        if not isinstance(layer, BayesianLinear) or inclusion is None or chosen is None:
            continue
        grid = inclusion.probabilities()
        if chosen.shape != grid.shape:
            raise ValueError(f"indicators are {list(chosen.shape)}; expected {list(grid.shape)}")
        certain = MeanField(*grid.shape, device=grid.device, dtype=grid.dtype)
        certain.omega.copy_(torch.where(chosen, _CERTAIN, -_CERTAIN))
        layer.inclusion = certain
        layer.random_logits = certain.random
    return model
