"""Layers and what they are made of."""

from .base import BayesianLayer
from .inclusion import MVN, LowRankMVN, MeanField
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .mlp import MLP
from .modes import WeightMode, expand_samples, weights

__all__ = [
    "MLP",
    "MVN",
    "BayesianLayer",
    "BayesianLinear",
    "GaussianLinear",
    "LBBNNLinear",
    "LowRankMVN",
    "MeanField",
    "WeightMode",
    "expand_samples",
    "weights",
]
