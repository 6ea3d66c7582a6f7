"""Several draws of a network: all at once where that is right, else one after the other.

Kernels compute many draws in one call, with the sample axis in front of everything. A module may be handed
such inputs only if it works on the last axis alone: a convolution, attention, an LSTM, ``x.mean(1)`` or
``h[:, 0]`` would take the samples for something else. So the axis is for networks that are known to work on
the last axis; all others see their plain inputs, draw after draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..nn.fixed import FixedMLP
from ..nn.layer import BayesianLayer
from ..nn.mlp import MLP
from .likelihoods import Likelihood

#: Modules that treat every number, or every row of the last axis, by itself.
_LAST_AXIS: frozenset[type[nn.Module]] = frozenset({
    MLP, FixedMLP, nn.Sequential, nn.Linear, nn.Identity, nn.Dropout, nn.AlphaDropout, nn.ReLU, nn.ReLU6,
    nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign,
    nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink,
})  # fmt: skip


def works_on_last_axis(model: nn.Module) -> bool:
    """Whether the model is known to treat any axes in front of the last as one more batch."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return False  # they see the inputs, too
        if isinstance(module, BayesianLayer | Likelihood):
            continue  # their contract: the first axis may count samples
        if type(module) is nn.LayerNorm:
            if len(module.normalized_shape) != 1:
                return False
        elif type(module) not in _LAST_AXIS:
            return False
        waiting += [child for child in module._modules.values() if child is not None]
    return True


@contextmanager
def used_repeatedly(layers: Sequence[BayesianLayer]) -> Iterator[None]:
    """Within, the layers' parameters are views, so that no optimiser updates them in the backward pass.

    An update there takes a parameter's only gradient; passes that share parameters have one each, and a view
    adds them up first.
    """
    held: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    for layer in layers:
        for module in layer.modules():
            for name, p in module._parameters.items():
                if p is not None and p.requires_grad:
                    held.append((module._parameters, name, p))
    try:
        for own, name, parameter in held:
            own[name] = parameter.view_as(parameter)
        yield
    finally:
        for own, name, parameter in held:
            own[name] = parameter


def call(model: nn.Module, x: Any) -> Any:
    """``model`` at its input: a tensor, a tuple of arguments, or a mapping of named ones."""
    if isinstance(x, Tensor):
        return model(x)
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple | list) else model(x)
