"""Layers and what they are made of."""

from .baselines.concrete_dropout import ConcreteDropoutLinear
from .baselines.horseshoe import HorseshoeLinear
from .baselines.mixture import MixtureLinear
from .baselines.normal_jeffreys import NormalJeffreysLinear
from .fixed import FixedLinear, FixedMLP
from .inclusion import MVN, LowRankMVN, MeanField
from .layer import LAYERS, BayesianLayer, bayesian_layers
from .linear import BayesianLinear, GaussianLinear, LBBNNLinear
from .mlp import MLP
from .modes import WeightMode
from .passes import expand_samples, weights

__all__ = [
    "LAYERS",
    "MLP",
    "MVN",
    "BayesianLayer",
    "BayesianLinear",
    "ConcreteDropoutLinear",
    "FixedLinear",
    "FixedMLP",
    "GaussianLinear",
    "HorseshoeLinear",
    "LBBNNLinear",
    "LowRankMVN",
    "MeanField",
    "MixtureLinear",
    "NormalJeffreysLinear",
    "WeightMode",
    "bayesian_layers",
    "expand_samples",
    "weights",
]
