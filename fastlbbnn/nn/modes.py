"""The ways to use a posterior."""

from __future__ import annotations

from enum import Enum


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
