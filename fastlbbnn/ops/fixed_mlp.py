"""``fastlbbnn::fixed_mlp_*``: layers of a fixed structure with ReLU between them, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._util.checks import check_choice, check_samples, shape_of
from ..reference.fixed_mlp import ESTIMATORS, Support
from . import dispatch, update
from .library import define, differentiable_once, gradient_of
from .parameters import COUNT, LayerParameters, absent_as_empty, flat, unflat

_PASS = "Tensor seeds, int samples, str estimator, int[] included"

# parameters: those of every layer, kappa, rho and omega [weights]; structure: the five tensors of every
# layer's Support; included: kept indicators of every layer.
# y [S, M, N], sums [layers, 5], saved: inputs, weights, hidden activations and their noise, for the kernels.
define(
    f"fixed_mlp_fwd(Tensor x, Tensor[] parameters, Tensor[] structure, {_PASS}) -> (Tensor, Tensor, Tensor)"
)
# dx, then the gradients of all parameters in their order.
define(
    "fixed_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, Tensor[] parameters, Tensor[] structure, Tensor saved, "
    f"{_PASS}, bool need_dx) -> Tensor[]"
)
define(
    "fixed_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor(a!)[] parameters, Tensor[] structure, "
    f"Tensor saved, {_PASS}, bool need_dx, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, float[] hyper) "
    "-> Tensor"
)

_bwd = torch.ops.fastlbbnn.fixed_mlp_bwd.default
_bwd_adam = torch.ops.fastlbbnn.fixed_mlp_bwd_adam.default
_fwd = torch.ops.fastlbbnn.fixed_mlp_fwd.default

#: Observations of a panel; mirrored in ``csrc/cpu/fixed_support.h``.
_UNIT, _WIDEST = 16, 112


def _kept_numbers(x: Tensor, parameters, structure, samples: int, estimator: str) -> int:
    """Size of ``saved``; mirrored in ``csrc/cpu/fixed_mlp.cpp``."""
    rows = x.shape[-2]
    panels = -(-rows // _WIDEST)
    width = _padded(-(-rows // panels)) if panels else 0
    everything = panels * samples * width
    layers, fields = unflat(parameters), len(Support._fields)
    total = (panels if x.dim() == 2 else panels * samples) * width * x.shape[-1]
    weight_rows = {"local": 2, "means": 1}.get(estimator, 2 * samples)
    for i, layer in enumerate(layers):
        outputs = structure[i * fields].shape[0] - 1
        total += weight_rows * _padded(layer.kappa.shape[0])
        total += outputs * everything * ((estimator == "local") + (i + 1 < len(layers)))
    return total


def _padded(count: int) -> int:
    return -(-count // _UNIT) * _UNIT


@torch.library.register_fake("fastlbbnn::fixed_mlp_fwd")
def _(x, parameters, structure, seeds, samples, estimator, included):
    outputs = structure[-len(Support._fields)].shape[0] - 1
    return (
        x.new_empty(samples, x.shape[-2], outputs),
        x.new_empty(len(included), 5, dtype=torch.float32),
        x.new_empty(_kept_numbers(x, parameters, structure, samples, estimator)),
    )


@torch.library.register_fake("fastlbbnn::fixed_mlp_bwd")
def _(dy, dsums, x, parameters, structure, saved, seeds, samples, estimator, included, need_dx):
    return [gradient_of(x if need_dx else None, x), *(gradient_of(p, x) for p in parameters)]


@torch.library.register_fake("fastlbbnn::fixed_mlp_bwd_adam")
def _(
    dy, dsums, x, parameters, structure, saved, seeds, samples, estimator, included, need_dx, exp_avg,
    exp_avg_sq, hyper,
):
    return gradient_of(x if need_dx else None, x)


_ABSENT = type(None)


class FixedMLPFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already.

    ``how`` is (samples, estimator, included); ``parameters`` are those of all layers, ``structure`` the tensors
    of all supports.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, structure: list[Tensor], seeds: Tensor, how: tuple[Any, ...], single: bool,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        given = absent_as_empty(parameters, x) if _ABSENT in map(type, parameters) else parameters
        y, sums, saved = _fwd(x, given, structure, seeds, *how)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, seeds, saved, *parameters)
            ctx.structure, ctx.how = structure, how
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsums: Tensor) -> Any:
        x, seeds, saved, *parameters = ctx.saved_tensors
        need_dx, trained = ctx.needs_input_grad[0], ctx.needs_input_grad[5:]
        given = absent_as_empty(parameters, x) if _ABSENT in map(type, parameters) else parameters
        arguments = (dy, dsums, x, given, ctx.structure, saved, seeds, *ctx.how, need_dx)
        claimed = update.claim(parameters, trained)
        if claimed is not None:
            adam, passed_on = claimed
            dx = _bwd_adam(*arguments, *adam)
            return (dx if need_dx else None, None, None, None, None, *passed_on)
        with torch.no_grad():
            dx, *computed = _bwd(*arguments)
        grads = (dx if need_dx else None, *(g if t else None for g, t in zip(computed, trained)))
        dx, *passed_on = differentiable_once("fixed_mlp", grads, (dy, dsums, x, *parameters))
        return (dx, None, None, None, None, *passed_on)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], structure: Sequence[Support], seeds: Tensor, samples: int,
    estimator: str, included: Sequence[int], single: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    how = (samples, estimator, list(included))
    return FixedMLPFunction.apply(x, list(flat(structure)), seeds, how, single, *flat(layers))


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], structure: Sequence[Support], seeds: Tensor, samples: int,
    estimator: str, included: Sequence[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return reference.fixed_mlp(
        x, layers, structure, seeds=seeds, samples=samples, estimator=estimator, included=included
    )


#: Arguments: supports, seeds, samples, estimator, included.
FIXED_MLP = dispatch.Op("fixed_mlp", _fused, _reference)


def fixed_mlp(
    x: Tensor,
    parameters: Sequence[Sequence[Tensor | None]],
    supports: Sequence[Support],
    *,
    seeds: Tensor | None = None,
    samples: int = 1,
    estimator: str = "local",
    included: Sequence[int] | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear layers of which only some weights are kept, with ReLU between them, in one call.

    A pass costs what is kept: forward, the gradients of inputs and of kept weights, the KL's sums and a step
    of Adam within ``Adam.backward_step``.

    Args:
        x: inputs ``[M, K]`` or ``[samples, M, K]``.
        parameters: ``LayerParameters`` of every layer, of which kappa, rho and omega hold the kept weights,
            ``[weights]``, in the order of the support. Without omega kept weights are certain to be included.
        supports: where these stand, a ``Support`` per layer.
        seeds: int64 tensor of one element per layer; drawn if None.
        estimator: "local" draws activations from their exact moments, "sampled" draws weights, "means" draws
            nothing. With omega, "sampled" is refused.
        included: kept indicators of every layer, A of the five sums where there is no omega; by default
            every kept weight has one.
        samples, backend: as in ``gated_linear``.

    Returns:
        Outputs ``[samples, M, N]`` and the five sums of every layer, ``[layers, 5]``.
    """
    layers = [LayerParameters(*layer) for layer in parameters]  # type: ignore[arg-type]
    if included is None:
        included = [support.weights for support in supports]
    if not len(layers) == len(supports) == len(included) >= 1:
        raise ValueError(
            f"{len(layers)} layers, {len(supports)} supports and {len(included)} numbers of indicators; expected "
            "the same number of each, at least one"
        )
    check_choice("estimator", estimator, ESTIMATORS)
    check_samples(samples)
    for i, (layer, support) in enumerate(zip(layers, supports)):
        check_layer(f"layer {i}", layer, support)
        if estimator == "sampled" and layer.omega is not None:
            raise ValueError(f"layer {i} has omega and estimator='sampled'; expected 'local' or 'means'")
        if i and supports[i - 1].rows != support.cols:
            raise ValueError(
                f"layer {i} takes {support.cols} inputs and layer {i - 1} has {supports[i - 1].rows} outputs; "
                "expected the same number"
            )
    stand_in = layers[0].kappa.new_empty(0, supports[0].cols)
    x, seeds = dispatch.checked(x, stand_in, samples, seeds, (len(layers),))
    return dispatch.call(FIXED_MLP, x, layers, supports, seeds, samples, estimator, included, backend=backend)


def check_layer(name: str, layer: LayerParameters, support: Support) -> None:
    """Shapes and dtypes of a layer's parameters and its support agree."""
    kappa = layer.kappa
    if layer.rho is None:
        raise ValueError(f"{name}: rho is None; expected a tensor like kappa")
    if (layer.bias_kappa is None) != (layer.bias_rho is None):
        raise ValueError(f"{name}: bias_kappa and bias_rho go together; one of them is None")
    if not kappa.dtype.is_floating_point:
        raise TypeError(f"{name}: kappa is {kappa.dtype}; expected a floating dtype")
    for field, t in zip(LayerParameters._fields, layer):
        size = support.rows if field.startswith("bias") else support.weights
        if t is None:
            continue
        if tuple(t.shape) != (size,):
            raise ValueError(
                f"{name}: {field} is {shape_of(t)}; expected [{size}] with a support of {support.weights} weights "
                f"in [{support.rows}, {support.cols}]"
            )
        if t.dtype != kappa.dtype or t.device != kappa.device:
            raise TypeError(
                f"{name}: {field} is {t.dtype} on {t.device} and kappa {kappa.dtype} on {kappa.device}; expected "
                "one dtype and device"
            )


__all__ = ["COUNT", "FIXED_MLP", "FixedMLPFunction", "Support", "fixed_mlp"]
