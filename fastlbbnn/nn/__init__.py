"""Layers and what they are made of."""

from .inclusion import MeanField
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .mlp import MLP
from .modes import WeightMode, expand_samples, weights

__all__ = [
    "MLP",
    "BayesianLinear",
    "GaussianLinear",
    "LBBNNLinear",
    "MeanField",
    "WeightMode",
    "expand_samples",
    "weights",
]
