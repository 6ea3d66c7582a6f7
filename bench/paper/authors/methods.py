"""The methods by the paper's names."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .concrete_dropout import AuthorsConcreteDropout
from .data import Problem
from .fnn import LEVELS, AuthorsFNN
from .gaussian import AuthorsBNN
from .lbbnn import AuthorsLBBNN, MeanFieldInclusion, RankOneInclusion, StaleMVNInclusion
from .normal_jeffreys import AuthorsNormalJeffreys

METHODS: dict[str, Callable[[Problem], nn.Module]] = {
    "LBBNN-GP-MF": lambda problem: AuthorsLBBNN(problem.sizes, MeanFieldInclusion),
    "LBBNN-GP-MVN": lambda problem: AuthorsLBBNN(problem.sizes, StaleMVNInclusion),
    "LBBNN-GP-LFMVN": lambda problem: AuthorsLBBNN(problem.sizes, RankOneInclusion),
    "BNN-GP-MF": lambda problem: AuthorsBNN(problem.sizes, mixture=False),
    "BNN-MGP-MF": lambda problem: AuthorsBNN(problem.sizes, mixture=True),
    # Only the script for PHONEME trains anything in its post-training.
    "BNN-GP-CMF": lambda problem: AuthorsConcreteDropout(problem.sizes, problem.name == "phoneme"),
    "BNN-HP-MF": lambda problem: AuthorsNormalJeffreys(problem.sizes, len(problem.y_train)),
    "FNN": lambda problem: AuthorsFNN(problem.sizes, LEVELS[problem.name]),
}
