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
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

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


_in_thread = _InThread()
#: By autograd's number of the pass: on a GPU, it runs on threads of its own.
_in_graph: dict[int, InPassOptimizer] = {}


class active:
    """Within, the backward pass from ``loss`` may ask ``optimizer``; passes of other threads may not."""

    def __init__(self, optimizer: InPassOptimizer, loss: Tensor) -> None:
        if _in_thread.optimizer is not None:
            raise RuntimeError("fastlbbnn: another optimiser is already updating inside a backward pass")
        self._optimizer = optimizer
        self._graph = -1
        self._hook: Any = loss.register_hook(self._begin) if loss.device.type != "cpu" else None

    def _begin(self, gradient: Tensor) -> None:
        self._graph = torch._C._current_graph_task_id()
        _in_graph[self._graph] = self._optimizer

    def __enter__(self) -> None:
        _in_thread.optimizer = self._optimizer

    def __exit__(self, *_: object) -> None:
        _in_thread.optimizer = None
        _in_graph.pop(self._graph, None)
        if self._hook is not None:
            self._hook.remove()


def claim(parameters: Parameters, trained: Sequence[bool]) -> tuple[AdamArguments, PassedOn] | None:
    """What the active optimiser wants done with parameters, of which ``trained`` need gradients."""
    optimizer = _in_thread.optimizer
    if optimizer is None and _in_graph:
        optimizer = _in_graph.get(torch._C._current_graph_task_id())
    return None if optimizer is None else optimizer.claim(parameters, trained)
