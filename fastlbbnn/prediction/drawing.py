"""Outputs of a network at several draws of its weights, the same draws for every batch of rows."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..inference.draws import works_on_last_axis
from ..inference.likelihoods import Likelihood
from ..nn.layer import BayesianLayer
from ..nn.mlp import MLP
from ..nn.modes import WeightMode
from ..nn.passes import expand_samples, weights

#: Rows times draws that one call computes, and draws whose outputs are stacked before they are averaged: so
#: that memory does not grow with the number of draws.
AT_ONCE, STACKED = 100_000, 100


class Drawing:
    """Draws of a model's outputs, from a seed.

    Networks that are known to work on the last axis alone are called with a sample axis in front; every other
    module is called once per draw with its plain inputs.
    """

    def __init__(
        self,
        model: nn.Module,
        mode: WeightMode,
        samples: int,
        threshold: float,
        seed: int,
        device: torch.device,
        together: bool | None = None,
    ) -> None:
        self.model, self.mode, self.threshold, self.seed = model, mode, threshold, seed
        #: One draw is enough where all are equal.
        self.draws = samples if mode.random else 1
        self.together = works_on_last_axis(model) if together is None else together
        # Each call starts from a seed of its own, so that every batch of rows sees the same draws.
        self._source = torch.Generator(device=device)

    def rows(self, batch_size: int) -> int:
        """Rows of a batch: fewer where many draws are computed in one call."""
        return min(batch_size, max(1, AT_ONCE // self.draws)) if self.together else batch_size

    def chunks(self, x: Tensor) -> Iterator[Tensor]:
        """Outputs [some draws, *output] of one batch, draws in their order."""
        most = AT_ONCE if self.together else STACKED
        for begin in range(0, self.draws, most):
            count = min(most, self.draws - begin)
            if self.together:
                yield self._call(expand_samples(x, count), begin, count)
            else:
                yield torch.stack([self._call(x, draw, None) for draw in range(begin, begin + count)])

    def _call(self, x: Tensor, number: int, samples: int | None) -> Tensor:
        self._source.manual_seed(self.seed + number)
        with weights(self.mode, samples=samples, threshold=self.threshold, generator=self._source):
            output: Any = self.model(x)
        if not isinstance(output, Tensor) or output.dim() == 0:
            given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise TypeError(
                f"{type(self.model).__name__} gives {given}; expected a tensor [n, outputs] (return it from "
                "forward, or wrap the model in a module that does)"
            )
        return output


# --- evaluation mode ------------------------------------------------------------------------------

#: Modules without a difference between train() and eval(); a Bayesian layer goes by its pass's mode.
_INDIFFERENT: frozenset[type[nn.Module]] = frozenset({
    MLP, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear,
    nn.Embedding, nn.LayerNorm, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d,
    nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU,
    nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus,
})  # fmt: skip

_lock = threading.Lock()
#: Module that was switched to eval() -> how many predictions need it so.
_held: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


def _switches(model: nn.Module) -> list[nn.Module]:
    """Modules whose flag matters: the others are left alone, so that a thread that trains sees no change."""
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, BayesianLayer | Likelihood) or module in found:
            continue
        if type(module) not in _INDIFFERENT:
            found[module] = None
        waiting += [child for child in module._modules.values() if child is not None]
    return list(found)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout, batch normalisation and the like as in eval(); afterwards each has its own flag back.

    Several threads may predict at once: the last of them puts a flag back.
    """
    mine = []
    with _lock:
        for module in _switches(model):
            if module.training or module in _held:
                _held[module] = _held.get(module, 0) + 1
                module.training = False
                mine.append(module)
    try:
        yield
    finally:
        with _lock:
            for module in mine:
                _held[module] -= 1
                if _held[module] == 0:
                    del _held[module]
                    module.training = True
