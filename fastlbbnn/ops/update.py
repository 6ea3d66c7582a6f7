"""The meeting point of a backward pass and an optimiser that wants to update inside it.

While an optimiser is ``active``, a fused backward pass asks ``claim`` whether its parameters are to be
updated at once. The optimiser answers with Adam's state and numbers, or with None for the ordinary
way. Nothing here knows how the optimiser works: data flows from it to the operator.

An operand that is computed from parameters (logits that are drawn) cannot be updated itself; its gradient
has to go on. A step of Adam leaves it: with beta1 = 0, from exp_avg = 0, exp_avg becomes the gradient, and
a step size of 0 leaves the operand alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

Parameters = tuple[Tensor | None, ...]
AdamArguments = tuple[list[Tensor], list[Tensor], list[float]]
#: Of every parameter, the gradient that goes on after the pass; None where it was used up.
PassedOn = tuple[Tensor | None, ...]


class InPassOptimizer(Protocol):
    def claim(
        self, parameters: Parameters, trained: tuple[bool, ...]
    ) -> tuple[AdamArguments, PassedOn] | None: ...


# One at a time for the process, not a thread: on a GPU, autograd runs backward passes on threads of
# its own.
_active: InPassOptimizer | None = None


@contextmanager
def active(optimizer: InPassOptimizer) -> Iterator[None]:
    global _active
    if _active is not None:
        raise RuntimeError("fastlbbnn: another optimiser is already updating inside a backward pass")
    _active = optimizer
    try:
        yield
    finally:
        _active = None


def claim(
    parameters: Parameters, trained: tuple[bool, ...]
) -> tuple[AdamArguments, PassedOn] | None:
    """What the active optimiser wants done with parameters, of which ``trained`` need gradients."""
    return None if _active is None else _active.claim(parameters, trained)
