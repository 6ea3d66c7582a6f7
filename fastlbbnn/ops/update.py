"""The meeting point of a backward pass and an optimiser that wants to update inside it.

While an optimiser is ``active``, a fused backward pass asks ``claim`` whether its parameters are to be
updated at once. The optimiser answers with Adam's state and numbers, or with None for the ordinary
way. Nothing here knows how the optimiser works: data flows from it to the operator.

An operand that is computed from parameters (logits that are drawn) cannot be updated itself; its gradient
has to go on. A step of Adam leaves it: with beta1 = 0, from exp_avg = 0, exp_avg becomes the gradient, and
a step size of 0 leaves the operand alone.
"""

from __future__ import annotations

import threading
from collections.abc import MutableMapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

Parameters = Sequence[Tensor | None]
AdamArguments = tuple[list[Tensor], list[Tensor], list[float]]
#: For every parameter, the gradient that goes on after the pass; None where it was used up.
PassedOn = Sequence[Tensor | None]


class InPassOptimizer(Protocol):
    def claim(
        self, parameters: Parameters, trained: Sequence[bool]
    ) -> tuple[AdamArguments, PassedOn] | None: ...


class _InThread(threading.local):
    """Who updates in the backward pass that this thread is in: on a CPU, autograd stays in its thread."""

    def __init__(self) -> None:
        self.optimizer: InPassOptimizer | None = None


in_thread = _InThread()
#: By autograd's number of the pass: on a GPU, it runs on threads of its own.
in_graph: dict[int, InPassOptimizer] = {}
#: Means of layers that a graph has used more than once (weight sharing; a reentrant checkpoint beside the
#: KL): no optimiser updates them before the last use has its gradient.
used_more_than_once: MutableMapping[Tensor, bool] = WeakIdKeyDictionary()


def claim(parameters: Parameters, trained: Sequence[bool]) -> tuple[AdamArguments, PassedOn] | None:
    """What the active optimiser wants done with parameters, of which ``trained`` need gradients."""
    optimizer = in_thread.optimizer
    if optimizer is None and in_graph:
        optimizer = in_graph.get(torch._C._current_graph_task_id())
    return None if optimizer is None else optimizer.claim(parameters, trained)
