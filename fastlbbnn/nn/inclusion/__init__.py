"""Where a layer's indicator logits come from: the paper's structure families.

    MeanField     omega is a parameter                     LBBNN-GP-MF
    MVN           omega = xi + z L'                        LBBNN-GP-MVN
    LowRankMVN    omega = xi + exp(log_scale) z + f F'     LBBNN-GP-LFMVN

``random.RandomLogits`` says what the objective is where omega is random, and what it cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._util.registry import Registry
from .base import Inclusion, MeanField
from .low_rank import LowRankMVN
from .mvn import MVN
from .random import RandomLogits

#: What ``LBBNNLinear(inclusion=...)`` knows by name.
FAMILIES: Registry[type[Inclusion]] = Registry("family of indicators")
for _name, _family in (("mean-field", MeanField), ("mvn", MVN), ("low-rank", LowRankMVN)):
    FAMILIES.register(_name, _family)


def make_inclusion(
    family: str | Callable[..., Inclusion], rows: int, cols: int, **options: Any
) -> Inclusion:
    """The indicators of a grid of blocks, by the family's name or a function that makes them."""
    if isinstance(family, str):
        if family not in FAMILIES:
            names = ", ".join(repr(name) for name in FAMILIES)
            raise ValueError(f"inclusion={family!r}; expected one of {names}, or a function")
        family = FAMILIES[family]
    elif not callable(family):
        raise TypeError(
            f"inclusion is a {type(family).__name__}; expected the name of a family or a function of "
            "(rows, cols, device=, dtype=)"
        )
    made = family(rows, cols, **options)
    if not isinstance(made, Inclusion):
        raise TypeError(
            f"inclusion made a {type(made).__name__}; expected a fastlbbnn.nn.inclusion.Inclusion"
        )
    shape = tuple(made.location().shape)
    if shape != (rows, cols):
        raise ValueError(f"inclusion made logits {list(shape)}; expected {[rows, cols]}, the grid of blocks")
    return made


__all__ = ["FAMILIES", "MVN", "Inclusion", "LowRankMVN", "MeanField", "RandomLogits", "make_inclusion"]
