"""Layers and what they are made of."""

from .inclusion import MeanField
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .modes import WeightMode, expand_samples, weights

__all__ = [
    "BayesianLinear",
    "GaussianLinear",
    "LBBNNLinear",
    "MeanField",
    "WeightMode",
    "expand_samples",
    "weights",
]
