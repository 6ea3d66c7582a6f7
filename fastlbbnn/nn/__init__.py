"""Layers and what they are made of."""

from .base import BayesianLayer
from .inclusion import MeanField
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .mlp import MLP
from .modes import WeightMode, expand_samples, weights

__all__ = [
    "MLP",
    "BayesianLayer",
    "BayesianLinear",
    "GaussianLinear",
    "LBBNNLinear",
    "MeanField",
    "WeightMode",
    "expand_samples",
    "weights",
]
