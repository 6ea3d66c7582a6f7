"""``fastlbbnn::gated_mlp_*``: a stack of gated linear layers with ReLU between them, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._util.checks import check_block, check_samples, check_temperature
from . import dispatch, update
from .checks import check_parameters
from .gated_linear import GATED_LINEAR, draw_size
from .library import define, differentiable_once, fake, gradient_of, keeps_draws, kept_parts
from .parameters import COUNT, LayerParameters, absent_as_empty, flat, unflat

_DRAW = "Tensor seeds, int samples, int[] blocks, float[] temperatures, bool hard"

# parameters: those of every layer (see parameters.flat), empty where there is none.
# y [S, M, N], sums [layers, 5], saved: the draws of each layer (as in gated_linear_fwd) and its hidden
# activations (see library.kept_parts); on a GPU the hidden activations [S, M, N] alone.
define(
    f"gated_mlp_fwd(Tensor x, Tensor[] parameters, {_DRAW}, bool save) -> (Tensor, Tensor, Tensor[])"
)
# dx, then the gradients of all parameters in their order.
define(
    "gated_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, Tensor[] parameters, Tensor[] saved, "
    f"{_DRAW}, bool need_dx) -> Tensor[]"
)
define(
    "gated_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor(a!)[] parameters, Tensor[] saved, "
    f"{_DRAW}, bool need_dx, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, float[] hyper) -> Tensor"
)

_bwd = torch.ops.fastlbbnn.gated_mlp_bwd.default
_bwd_adam = torch.ops.fastlbbnn.gated_mlp_bwd_adam.default
_fwd = torch.ops.fastlbbnn.gated_mlp_fwd.default


@fake("gated_mlp_fwd")
def _(x, parameters, seeds, samples, blocks, temperatures, hard, save):
    layers = unflat(parameters)
    shapes = [(samples, x.shape[-2], layer.kappa.shape[0]) for layer in layers]
    hidden = shapes[:-1]
    saved = []
    if save and keeps_draws(x.device):
        parts = []
        for layer, block, outputs in zip(layers, zip(blocks[::2], blocks[1::2]), [*hidden, (0,)]):
            gated = layer.omega is not None and layer.omega.numel() > 0
            parts += [(samples, draw_size(layer.kappa, gated, block)), outputs]
        saved = kept_parts(x, parts)
    elif save:
        saved = [x.new_empty(shape) for shape in hidden]
    return x.new_empty(shapes[-1]), x.new_empty(len(layers), 5, dtype=torch.float32), saved


@fake("gated_mlp_bwd")
def _(dy, dsums, x, parameters, saved, seeds, samples, blocks, temperatures, hard, need_dx):
    return [gradient_of(x if need_dx else None, x), *(gradient_of(p, x) for p in parameters)]


@fake("gated_mlp_bwd_adam")
def _(
    dy, dsums, x, parameters, saved, seeds, samples, blocks, temperatures, hard, need_dx, exp_avg,
    exp_avg_sq, hyper,
):
    return gradient_of(x if need_dx else None, x)


_ABSENT = type(None)


class GatedMLPFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already.

    ``draw`` is (samples, blocks in one list, temperatures, hard); ``parameters`` are those of all layers.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, seeds: Tensor, draw: tuple[Any, ...], single: bool, *parameters: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        save = any(ctx.needs_input_grad)
        given = absent_as_empty(parameters, x) if _ABSENT in map(type, parameters) else parameters
        y, sums, saved = _fwd(x, given, seeds, *draw, save)
        if save:
            ctx.save_for_backward(x, seeds, *parameters, *saved)
            ctx.draw = draw
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsums: Tensor) -> Any:
        x, seeds, *rest = ctx.saved_tensors
        count = COUNT * len(ctx.draw[2])
        parameters, saved = rest[:count], rest[count:]
        need_dx, trained = ctx.needs_input_grad[0], ctx.needs_input_grad[4:]
        given = absent_as_empty(parameters, x) if _ABSENT in map(type, parameters) else parameters
        arguments = (dy, dsums, x, given, saved, seeds, *ctx.draw, need_dx)
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
            grads = differentiable_once("gated_mlp", grads, (dy, dsums, x, *parameters))
        dx, *passed_on = grads
        return (dx, None, None, None, *passed_on)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], seeds: Tensor, samples: int,
    blocks: Sequence[tuple[int, int]], temperatures: Sequence[float], hard: bool, single: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    draw = (samples, [n for block in blocks for n in block], list(temperatures), hard)
    return dispatch.apply(GatedMLPFunction, x, seeds, draw, single, *flat(layers))


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], seeds: Tensor, samples: int,
    blocks: Sequence[tuple[int, int]], temperatures: Sequence[float], hard: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return reference.gated_mlp(
        x, layers, seeds=seeds, samples=samples, blocks=blocks, temperatures=temperatures, hard=hard
    )


def _of_layer(
    i: int, seeds: Tensor, samples: int, blocks: Sequence[tuple[int, int]], temperatures: Sequence[float],
    hard: bool,
) -> tuple[Any, ...]:  # fmt: skip
    return seeds[i], samples, blocks[i], temperatures[i], hard


#: Arguments: seeds, samples, blocks, temperatures, hard.
GATED_MLP = dispatch.Op("gated_mlp", _fused, _reference, GATED_LINEAR, _of_layer)


def gated_mlp(
    x: Tensor,
    parameters: Sequence[Sequence[Tensor | None]],
    *,
    seeds: Tensor | None = None,
    samples: int = 1,
    blocks: Sequence[tuple[int, int]] | None = None,
    temperatures: Sequence[float] | None = None,
    hard: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``gated_linear`` layers with ReLU between them, in one call.

    The same numbers as a loop over the layers; what lies between them is fused, and there is one node
    in the graph.

    Args:
        x: inputs ``[M, K]`` or ``[samples, M, K]``.
        parameters: ``LayerParameters`` of every layer (None as in ``gated_linear``); a layer's K is the N of
            the layer before.
        seeds: int64 tensor of one element per layer; drawn if None.
        blocks, temperatures: one per layer; by default (1, 1) and 1.
        samples, hard, backend: as in ``gated_linear``, and so are dtypes. (What lies between the layers has
            the dtype of x; on a CPU an x in half precision stays float32 there.)

    Returns:
        Outputs ``[samples, M, N]`` and the five sums of every layer, ``[layers, 5]``.
    """
    count = len(parameters)
    if count == 0:
        raise ValueError("parameters is empty; expected at least one layer")
    blocks = [(1, 1)] * count if blocks is None else [tuple(b) for b in blocks]  # type: ignore[misc]
    temperatures = [1.0] * count if temperatures is None else [float(t) for t in temperatures]
    if len(blocks) != count or len(temperatures) != count:
        raise ValueError(
            f"{count} layers, {len(blocks)} blocks and {len(temperatures)} temperatures; expected the same "
            "number of each"
        )
    check_samples(samples)
    layers = [LayerParameters(*layer) for layer in parameters]  # type: ignore[arg-type]
    for layer, block, temperature in zip(layers, blocks, temperatures):
        check_block(block)
        if not hard:
            check_temperature(temperature)
        check_parameters(layer, block)
    for i, (before, layer) in enumerate(zip(layers, layers[1:])):
        if layer.kappa.shape[1] != before.kappa.shape[0]:
            raise ValueError(
                f"layer {i + 1} takes {layer.kappa.shape[1]} inputs and layer {i} has "
                f"{before.kappa.shape[0]} outputs; expected the same number"
            )
    x, seeds = dispatch.checked(x, layers[0].kappa, samples, seeds, (count,))
    return dispatch.call(GATED_MLP, x, layers, seeds, samples, blocks, temperatures, hard, backend=backend)
