"""Inclusion probabilities of a layer as counts: what a histogram shows, without the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Bins of equal width from 0 to 1; an even number, so that the median model's threshold lies between two.
BINS = 50


@dataclass(frozen=True)
class InclusionCounts:
    """The histogram of one layer's inclusion probabilities."""

    #: Weights per bin; a probability of 1 is in the last.
    counts: Sequence[int]
    mean: float
    #: Weights with a probability above 0.5: those of the median probability model.
    above_half: int

    @staticmethod
    def of(alpha: Any) -> InclusionCounts:
        """``alpha``: inclusion probabilities as an array or a tensor, of any shape."""
        detach = getattr(alpha, "detach", None)
        values = np.asarray(alpha if detach is None else detach().cpu().numpy()).reshape(-1)
        counts, _ = np.histogram(values, bins=BINS, range=(0.0, 1.0))
        mean = float(values.mean(dtype=np.float64))
        return InclusionCounts(counts.tolist(), mean, int((values > 0.5).sum()))
