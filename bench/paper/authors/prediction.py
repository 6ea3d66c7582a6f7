"""From outputs of draws to rows of the tables, as the authors' scripts compute them."""

from __future__ import annotations

import statistics
from typing import Any, Protocol

import torch
from torch import Tensor

#: R of the model average.
SAMPLES = 10
#: How gamma and beta are treated: ("SIM", "SIM"), ("ALL", "MEA"), ...
Mode = tuple[str, str]
Row = dict[str, Any]


class Predictor(Protocol):
    def batch(self, x: Tensor, samples: int) -> dict[Mode, Tensor]:
        """x: [B, in] -> scores [R, B, classes] for each mode: log-probabilities, or raw logits."""

    def densities(self) -> dict[tuple[str, int], float]:
        """(gamma, R) -> share of the weights used, after all batches."""


def predict(predictor: Predictor, x: Tensor, batch_size: int) -> dict[Mode, Tensor]:
    """Scores [R, N, classes]; every test batch has its own draws."""
    parts: dict[Mode, list[Tensor]] = {}
    for part in x.split(batch_size):
        for mode, scores in predictor.batch(part, SAMPLES).items():
            parts.setdefault(mode, []).append(scores)
    return {mode: torch.cat(scores, dim=1) for mode, scores in parts.items()}


def confidence(scores: Tensor) -> Tensor:
    """scores: [R, N, C] -> the scripts' class confidences [N, C].

    sigmoid(score_c), i.e. p_c / (1 + p_c) for log-probabilities, normalised over c, averaged over draws.
    """
    q = scores.sigmoid()
    return (q / q.sum(dim=2, keepdim=True)).mean(dim=0)


def rows(
    scores: dict[Mode, Tensor], y: Tensor, densities: dict[tuple[str, int], float], first_of_average: int = 0
) -> list[Row]:
    """One row a mode and R. ``first_of_average``: draws before it are left out of the average of R = 10."""
    found: list[Row] = []
    for (gamma, beta), s in scores.items():
        single = [float((draw.argmax(dim=1) == y).double().mean()) for draw in s]
        row = {"gamma": gamma, "beta": beta, "R": 1, "accuracy": statistics.median(single),
               "accuracy_at_095": None, "classified_at_095": None, "density": densities[(gamma, 1)]}
        if len(s) > 1:
            row["accuracies"] = single
        found.append(row)
        if len(s) > 1:
            found.append(_average_row(gamma, beta, s, y, densities, first_of_average))
    return found


def _average_row(
    gamma: str, beta: str, s: Tensor, y: Tensor, densities: dict[tuple[str, int], float], first: int
) -> Row:
    # The mean of log-probabilities: a geometric mean of the draws' predictions, not the model average.
    chosen = s[first:].mean(dim=0).argmax(dim=1)
    right = chosen == y
    sure = confidence(s).gather(1, chosen[:, None]).squeeze(1) >= 0.95
    return {
        "gamma": gamma, "beta": beta, "R": len(s), "accuracy": float(right.double().mean()),
        "accuracy_at_095": float(right[sure].double().mean()) if bool(sure.any()) else None,
        "classified_at_095": int(sure.sum()), "density": densities[(gamma, len(s))],
    }
