"""Layers and what they are made of."""

from .baselines.concrete_dropout import ConcreteDropoutLinear
from .baselines.horseshoe import HorseshoeLinear
from .baselines.mixture import MixtureLinear
from .baselines.normal_jeffreys import NormalJeffreysLinear
from .inclusion import MVN, LowRankMVN, MeanField
from .layer import BayesianLayer
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .mlp import MLP
from .modes import WeightMode, expand_samples, weights

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
