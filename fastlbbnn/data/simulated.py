"""Simulated problems whose structure is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._util.checks import check_positive_int


@dataclass(frozen=True)
class CorrelatedLogistic:
    """A logistic regression with few true covariates among many correlated ones."""

    x: Tensor  # [n, p], standard normal margins
    y: Tensor  # [n], 0 or 1, float32
    coefficients: Tensor  # [p], 0 for covariates that do not matter
    true: Tensor  # [p], bool: the coefficient is not 0
    group: Tensor  # [p], int64: covariates of one number >= 0 are near-duplicates; -1 for the others


def correlated_logistic(
    n: int,
    p: int = 40,
    *,
    true: int = 8,
    effect: float = 1.5,
    autocorrelation: float = 0.5,
    groups: int = 3,
    copies: int = 1,
    duplicate_correlation: float = 0.9,
    seed: int = 0,
) -> CorrelatedLogistic:
    """``y ~ Bernoulli(sigmoid(x b))`` with dependent covariates.

    The first ``p - groups*copies`` covariates are a stationary AR(1) sequence. ``true`` of them, chosen at
    random, have coefficients ``+-effect``. The first ``groups`` true ones are each followed, at the end of
    x, by ``copies`` near-duplicates, ``r x_j + sqrt(1 - r^2) noise`` with ``r = duplicate_correlation``,
    whose coefficients are 0: they predict almost as well, and do not belong in the model.

    Args:
        n, p: observations and covariates, near-duplicates included.
        effect: size of the true coefficients, in logits per standard deviation of the covariate.
        autocorrelation: correlation of neighbours in the AR(1) sequence, in (-1, 1).
        seed: the same seed, the same data.
    """
    for name, value in (("n", n), ("p", p), ("true", true)):
        check_positive_int(name, value)
    for name, value in (("groups", groups), ("copies", copies)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}={value!r}; expected an int, at least 0")
    for name, correlation in (
        ("autocorrelation", autocorrelation), ("duplicate_correlation", duplicate_correlation)
    ):
        if not -1.0 < correlation < 1.0:
            raise ValueError(f"{name}={correlation}; expected a correlation in (-1, 1)")
    sequence = p - groups * copies
    if groups > true or true > sequence:
        raise ValueError(
            f"true={true}, groups={groups}, copies={copies}, p={p}: expected groups <= true <= p - "
            "groups*copies, since near-duplicates are of true covariates and none of them is true"
        )

    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, p, generator=g, dtype=torch.float64)
    x = noise.clone()
    # x_j = r x_(j-1) + sqrt(1 - r^2) noise_j
    spread = math.sqrt(1.0 - autocorrelation**2)
    for j in range(1, sequence):
        x[:, j] = autocorrelation * x[:, j - 1] + spread * noise[:, j]
    chosen = torch.randperm(sequence, generator=g)[:true]
    group = torch.full((p,), -1, dtype=torch.int64)
    noise_share = math.sqrt(1.0 - duplicate_correlation**2)
    for number, original in enumerate(chosen[:groups].tolist()):
        own = slice(sequence + number * copies, sequence + (number + 1) * copies)
        x[:, own] = duplicate_correlation * x[:, original].unsqueeze(1) + noise_share * noise[:, own]
        group[original] = number
        group[own] = number

    coefficients = torch.zeros(p, dtype=torch.float64)
    signs = 2.0 * torch.randint(2, (true,), generator=g) - 1.0
    coefficients[chosen] = effect * signs.double()
    y = torch.bernoulli(torch.sigmoid(x @ coefficients), generator=g)
    return CorrelatedLogistic(
        x=x.float(), y=y.float(), coefficients=coefficients.float(), true=coefficients != 0.0, group=group
    )
