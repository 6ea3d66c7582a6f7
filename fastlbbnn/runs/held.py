"""Stages that hold the structure: their network keeps, and computes with, the kept weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn.fixed import FixedMLP, costs_what_it_keeps, dense_layers
from ..nn.modes import WeightMode
from .recipe import Stage

if TYPE_CHECKING:
    from ..ops.fixed_mlp import Support

#: Share of the weights above which dense kernels are as fast.
MOST = 0.5
#: Kinds of parameters that a held structure leaves to train.
_KINDS = {"weights", "psi", "sigma2"}


def held_network(network: nn.Module, stage: Stage, threshold: float) -> FixedMLP | None:
    """The network that a stage trains in the place of ``network``; None: itself.

    A stage that trains the median model holds its structure. Of a perceptron on a CPU whose median model is
    sparse only the kept weights are trained, with the numbers, to rounding, that masks would give.
    """
    layers = dense_layers(network)
    if stage.mode != WeightMode.MEDIAN.value or layers is None:
        return None
    if any(size > 0.0 and kind not in _KINDS for kind, size in stage.step_sizes.items()):
        return None
    if not all(costs_what_it_keeps(layer) for layer in layers):
        return None
    if any(module._forward_hooks or module._forward_pre_hooks for module in network.modules()):
        return None
    kept = [layer.kept(threshold) for layer in layers]
    if sum(int(k.sum()) for k in kept) > MOST * sum(k.numel() for k in kept):
        return None
    return FixedMLP.of(network, kept=kept)


class DenseState:
    """An optimiser's state as that of the dense network, for checkpoints: they say nothing of who computes.

    Weights that are not kept have moments of zero.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, held: FixedMLP) -> None:
        self._optimizer = optimizer
        of = {id(p): layer.support for layer in held.layers() for p in (layer.kappa, layer.rho)}
        self._supports: dict[int, Support] = {}
        for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            if id(p) in of:
                self._supports[i] = of[id(p)]

    def _converted(self, state: dict[str, Any], *, to_dense: bool) -> dict[str, Any]:
        def convert(support: Support, t: Tensor) -> Tensor:
            if to_dense and t.shape == (support.weights,):
                return support.dense(t)
            if not to_dense and t.shape == (support.rows, support.cols):
                return t[support.by_rows()].contiguous()
            return t  # such as the step

        moments = {
            i: {name: convert(self._supports[i], t) for name, t in own.items()} if i in self._supports else own
            for i, own in state["state"].items()
        }
        return {**state, "state": moments}

    def state_dict(self) -> dict[str, Any]:
        return self._converted(self._optimizer.state_dict(), to_dense=True)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(self._converted(state, to_dense=False))
