"""One file an operator: its schema, its fake, its autograd. Importing this defines them all."""

from . import inspect
from .cross_entropy import CrossEntropyFunction, cross_entropy
from .gated_linear import GatedLinearFunction
from .gated_mlp import GatedMLPFunction
from .kl_sums import KLSumsFunction
from .local_linear import LocalLinearFunction
from .mixture_linear import MixtureLinearFunction

__all__ = [
    "GatedLinearFunction",
    "GatedMLPFunction",
    "KLSumsFunction",
    "LocalLinearFunction",
    "MixtureLinearFunction",
    "inspect",
]
