"""The five tensors of a layer as the operators take them: ``LayerParameters``, and lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from torch import Tensor

from ..reference.parameters import LayerParameters

#: Tensors per layer in the flat lists that the operators of a stack take.
COUNT = len(LayerParameters._fields)
#: Where the logits stand in one.
OMEGA = LayerParameters._fields.index("omega")

#: The parameters in an operator's schema; and as an operator that updates them takes them.
SCHEMA = "Tensor kappa, Tensor rho, Tensor? omega, Tensor? bias_kappa, Tensor? bias_rho"
MUTABLE_SCHEMA = (
    "Tensor(a!) kappa, Tensor(b!) rho, Tensor(c!)? omega, Tensor(d!)? bias_kappa, "
    "Tensor(e!)? bias_rho"
)


#: All tensors of a stack of layers in a row, ``COUNT`` per layer.
flat = chain.from_iterable


def unflat(tensors: Sequence[Tensor | None]) -> list[LayerParameters]:
    """The layers that ``flat`` made a list of."""
    return [LayerParameters(*tensors[i : i + COUNT]) for i in range(0, len(tensors), COUNT)]  # type: ignore[arg-type]


def absent_as_empty(tensors: Sequence[Tensor | None], like: Tensor) -> list[Tensor]:
    """With an empty tensor for every None, as lists in a schema hold tensors alone."""
    nothing = like.new_empty(0)
    return [nothing if t is None else t for t in tensors]


def empty_as_absent(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """The other way round, for implementations of an operator."""
    return [None if t.numel() == 0 else t for t in tensors]


__all__ = [
    "COUNT",
    "MUTABLE_SCHEMA",
    "OMEGA",
    "SCHEMA",
    "LayerParameters",
    "absent_as_empty",
    "empty_as_absent",
    "flat",
    "unflat",
]
