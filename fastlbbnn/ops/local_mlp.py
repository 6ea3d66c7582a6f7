"""``fastlbbnn::local_mlp_*``: a stack of ``local_linear`` layers with ReLU between them, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from .. import reference
from . import dispatch, update
from .library import define, differentiable_once, fake, gradient_of, keeps_draws, kept_parts
from .local_linear import LOCAL_LINEAR
from .parameters import LayerParameters, absent_as_empty, flat, unflat

# parameters: those of every layer (see parameters.flat), empty where there is none.
# y [S, M, N], sums [layers, 5], saved: what local_linear_fwd keeps of each layer and its hidden activations
# (see library.kept_parts); on a GPU the half ratios of all layers, then the hidden activations [S, M, N].
define(
    "local_mlp_fwd(Tensor x, Tensor[] parameters, Tensor seeds, int samples) -> (Tensor, Tensor, Tensor[])"
)
# dx, then the gradients of all parameters in their order.
define(
    "local_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, Tensor[] parameters, Tensor[] saved, int samples, "
    "bool need_dx) -> Tensor[]"
)
define(
    "local_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor(a!)[] parameters, Tensor[] saved, "
    "int samples, bool need_dx, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, float[] hyper) -> Tensor"
)

_bwd = torch.ops.fastlbbnn.local_mlp_bwd.default
_bwd_adam = torch.ops.fastlbbnn.local_mlp_bwd_adam.default
_fwd = torch.ops.fastlbbnn.local_mlp_fwd.default


@fake("local_mlp_fwd")
def _(x, parameters, seeds, samples):
    kappas = [layer.kappa for layer in unflat(parameters)]
    shapes = [(samples, x.shape[-2], kappa.shape[0]) for kappa in kappas]
    hidden = shapes[:-1]
    if keeps_draws(x.device):
        parts = zip(((2, *kappa.shape) for kappa in kappas), shapes, [*hidden, (0,)])
        saved = kept_parts(x, chain.from_iterable(parts))
    else:
        saved = [x.new_empty(shape, dtype=torch.float32) for shape in shapes]
        saved += [x.new_empty(shape) for shape in hidden]
    return x.new_empty(shapes[-1]), x.new_empty(len(kappas), 5, dtype=torch.float32), saved


@fake("local_mlp_bwd")
def _(dy, dsums, x, parameters, saved, samples, need_dx):
    return [gradient_of(x if need_dx else None, x), *(gradient_of(p, x) for p in parameters)]


@fake("local_mlp_bwd_adam")
def _(dy, dsums, x, parameters, saved, samples, need_dx, exp_avg, exp_avg_sq, hyper):
    return gradient_of(x if need_dx else None, x)


_ABSENT = type(None)


class LocalMLPFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, seeds: Tensor, samples: int, single: bool, *parameters: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        given = absent_as_empty(parameters, x) if _ABSENT in map(type, parameters) else parameters
        y, sums, saved = _fwd(x, given, seeds, samples)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, *parameters, *saved)
            ctx.samples = samples
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsums: Tensor) -> Any:
        need_dx, trained = ctx.needs_input_grad[0], ctx.needs_input_grad[4:]
        x, *rest = ctx.saved_tensors
        parameters, saved = rest[: len(trained)], rest[len(trained) :]
        given = absent_as_empty(parameters, x) if _ABSENT in map(type, parameters) else parameters
        arguments = (dy, dsums, x, given, saved, ctx.samples, need_dx)
        # As update.claim, without a call where every training step comes along.
        optimizer = update.in_thread.optimizer
        if optimizer is None:
            claimed = update.claim(parameters, trained) if update.in_graph else None
        else:
            claimed = optimizer.claim(parameters, trained)
        if claimed is not None:
            adam, passed_on = claimed
            dx = _bwd_adam(*arguments, *adam)
            return (dx if need_dx else None, None, None, None, *passed_on)
        with torch.no_grad():
            dx, *computed = _bwd(*arguments)
        grads = (dx if need_dx else None, *(g if t else None for g, t in zip(computed, trained)))
        if torch.is_grad_enabled():
            grads = differentiable_once("local_mlp", grads, (dy, dsums, x, *parameters))
        dx, *passed_on = grads
        return (dx, None, None, None, *passed_on)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], seeds: Tensor, samples: int, single: bool
) -> tuple[Tensor, Tensor]:
    return dispatch.apply(LocalMLPFunction, x, seeds, samples, single, *flat(layers))


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
