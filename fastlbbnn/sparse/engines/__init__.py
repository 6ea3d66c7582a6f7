"""What computes a selected network: ``cpu`` (the C++ library, dense products, numpy) and ``cuda``.

An engine is made of a checked network. It plans, computes outputs of inputs ``[batch, in_features]`` at
the means, and draws weights to compute with: see ``Engine``. Others are registered with ``ENGINES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..._util.registry import Registry


class Drawn(Protocol):
    """Weights sampled from a posterior."""

    samples: int

    def forward(self, x: Any) -> Any:
        """``[batch, in_features] -> [samples, batch, out_features]``."""


class Engine(Protocol):
    """Computes one network."""

    def forward(self, x: Any) -> Any:
        """``[batch, in_features] -> [batch, out_features]``, float32."""

    def draw(self, samples: int, seeds: Sequence[int]) -> Drawn:
        """Weights at which ``Drawn.forward`` computes."""


#: Name -> what makes an engine of a CheckedNetwork and options.
ENGINES: Registry[Callable[..., Engine]] = Registry("engine")


def find_engine(name: str) -> Callable[..., Engine]:
    """By name; the engines of this package load when they are asked for."""
    if name == "cpu":
        from . import cpu
    elif name == "cuda":
        from . import cuda
    return ENGINES.find(name)
