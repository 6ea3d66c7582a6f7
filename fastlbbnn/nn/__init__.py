"""Layers and what they are made of."""

from .base import BayesianLayer
from .concrete_dropout import ConcreteDropoutLinear
from .horseshoe import HorseshoeLinear
from .inclusion import MVN, LowRankMVN, MeanField
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .mixture import MixtureLinear
from .mlp import MLP
from .modes import WeightMode, expand_samples, weights
from .normal_jeffreys import NormalJeffreysLinear

__all__ = [
    "MLP",
    "MVN",
    "BayesianLayer",
    "BayesianLinear",
    "ConcreteDropoutLinear",
    "GaussianLinear",
    "HorseshoeLinear",
    "LBBNNLinear",
    "LowRankMVN",
    "MeanField",
    "MixtureLinear",
    "NormalJeffreysLinear",
    "WeightMode",
    "expand_samples",
    "weights",
]
