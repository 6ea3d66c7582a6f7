"""``local_mlp``: a stack of ``local_linear`` layers with ReLU between them, as one node of the graph.

The operators are those of ``local_linear``, called in turn; what is saved is what stands between them: a node
per layer, and some twenty calls of Python each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from . import dispatch, update
from .library import differentiable_once
from .local_linear import LOCAL_LINEAR
from .parameters import COUNT, LayerParameters, flat

_bwd = torch.ops.fastlbbnn.local_linear_bwd.default
_bwd_adam = torch.ops.fastlbbnn.local_linear_bwd_adam.default
_fwd = torch.ops.fastlbbnn.local_linear_fwd.default
_relu_bwd = torch.ops.aten.threshold_backward.default


class LocalMLPFunction(torch.autograd.Function):
    """Autograd around the passes of all layers. Arguments are checked already."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, seeds: Tensor, samples: int, single: bool, *parameters: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        inputs, kept, sums = [], [], []
        for i, seed in enumerate(seeds.unbind()):
            inputs.append(x)
            layer = parameters[COUNT * i : COUNT * (i + 1)]
            y, layer_sums, moments, half_ratio = _fwd(x, *layer, seed, samples)
            sums.append(layer_sums)
            kept += [moments, half_ratio]
            x = torch.relu(y[0] if samples == 1 else y)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*inputs, *kept, *parameters)
            ctx.samples = samples
        return (y.squeeze(0) if single else y), torch.stack(sums)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsums: Tensor) -> Any:
        saved = ctx.saved_tensors
        count = len(saved) // (COUNT + 3)
        inputs, kept, parameters = saved[:count], saved[count : 3 * count], saved[3 * count :]
        need_dx, trained = ctx.needs_input_grad[0], ctx.needs_input_grad[4:]
        optimizer = update.in_thread.optimizer
        grads: list[Tensor | None] = [None] * len(parameters)
        dx = dy
        for i in reversed(range(count)):
            if i < count - 1:
                dx = _relu_bwd(dx, inputs[i + 1], 0)
            of_layer = slice(COUNT * i, COUNT * (i + 1))
            layer, wanted = parameters[of_layer], trained[of_layer]
            arguments = (
                dx, dsums[i], inputs[i], *layer, kept[2 * i], kept[2 * i + 1], ctx.samples, i > 0 or need_dx
            )  # fmt: skip
            # As update.claim, without a call where every training step comes along.
            if optimizer is None:
                claimed = update.claim(layer, wanted) if update.in_graph else None
            else:
                claimed = optimizer.claim(layer, wanted)
            if claimed is not None:
                adam, passed_on = claimed
                dx = _bwd_adam(*arguments, *adam)
                grads[of_layer] = passed_on
                continue
            with torch.no_grad():
                dx, *computed = _bwd(*arguments)
            grads[of_layer] = [g if t else None for g, t in zip(computed, wanted)]
        found = (dx if need_dx else None, *grads)
        if torch.is_grad_enabled():
            found = differentiable_once("local_mlp", found, (dy, dsums, inputs[0], *parameters))
        return (found[0], None, None, None, *found[1:])


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], seeds: Tensor, samples: int, single: bool
) -> tuple[Tensor, Tensor]:
    return LocalMLPFunction.apply(x, seeds, samples, single, *flat(layers))


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], seeds: Tensor, samples: int
) -> tuple[Tensor, Tensor]:
    sums = []
    for i, (layer, seed) in enumerate(zip(layers, seeds.unbind())):
        x, layer_sums = reference.local_linear(
            x if i == 0 else torch.relu(x), *layer, seed=seed, samples=samples
        )
        sums.append(layer_sums)
    return x, torch.stack(sums)


def _of_layer(i: int, seeds: Tensor, samples: int) -> tuple[Any, ...]:
    return seeds[i], samples


#: Arguments: seeds, samples.
LOCAL_MLP = dispatch.Op("local_mlp", _fused, _reference, LOCAL_LINEAR, _of_layer)
