"""``fastlbbnn::local_linear_*``: local reparametrisation, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._util.checks import check_samples
from . import dispatch, update
from .checks import check_parameters
from .library import ADAM, define, differentiable_once, fake, gradient_of, keeps_draws
from .parameters import MUTABLE_SCHEMA, SCHEMA, LayerParameters

# y [S, M, N], sums [5], moments [2, N, K] (mean and variance weights; on a GPU empty, they are made
# again) and half_ratio [S, M, N]; all but y in float32.
define(
    f"local_linear_fwd(Tensor x, {SCHEMA}, Tensor seed, int samples) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
define(
    f"local_linear_bwd(Tensor dy, Tensor dsums, Tensor x, {SCHEMA}, Tensor moments, "
    "Tensor half_ratio, int samples, bool need_dx) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
define(
    f"local_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, {MUTABLE_SCHEMA}, Tensor moments, "
    f"Tensor half_ratio, int samples, bool need_dx, {ADAM}) -> Tensor"
)

_bwd = torch.ops.fastlbbnn.local_linear_bwd.default
_bwd_adam = torch.ops.fastlbbnn.local_linear_bwd_adam.default
_fwd = torch.ops.fastlbbnn.local_linear_fwd.default


@fake("local_linear_fwd")
def _(x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples):
    rows, cols = kappa.shape
    shape = (samples, x.shape[-2], rows)
    moments = (2, rows, cols) if keeps_draws(x.device) else (0,)
    return (
        x.new_empty(shape),
        x.new_empty(5, dtype=torch.float32),
        x.new_empty(moments),
        x.new_empty(shape, dtype=torch.float32),
    )


@fake("local_linear_bwd")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio, samples, need_dx
):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    return (gradient_of(x if need_dx else None, x), *(gradient_of(p, x) for p in parameters))


@fake("local_linear_bwd_adam")
def _(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio, samples, need_dx,
    exp_avg, exp_avg_sq, hyper,
):
    return gradient_of(x if need_dx else None, x)


class LocalLinearFunction(torch.autograd.Function):
    """Autograd around the fused passes. Arguments are checked already."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kappa: Tensor, rho: Tensor, omega: Tensor | None, bias_kappa: Tensor | None,
        bias_rho: Tensor | None, seed: Tensor, samples: int, single: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        layer = (kappa, rho, omega, bias_kappa, bias_rho)
        y, sums, moments, half_ratio = _fwd(x, *layer, seed, samples)
        ctx.save_for_backward(x, *layer, moments, half_ratio)
        ctx.samples = samples
        return (y.squeeze(0) if single else y), sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsums: Tensor) -> Any:
        x, *layer, moments, half_ratio = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:6]
        arguments = (dy, dsums, x, *layer, moments, half_ratio, ctx.samples, wanted[0])
        claimed = update.claim(layer, wanted[1:])
        if claimed is not None:
            adam, passed_on = claimed
            dx = _bwd_adam(*arguments, *adam)
            return (dx if wanted[0] else None, *passed_on, *(None,) * 3)
        with torch.no_grad():
            computed = _bwd(*arguments)
        grads = tuple(g if want else None for g, want in zip(computed, wanted))
        grads = differentiable_once("local_linear", grads, (dy, dsums, x, *layer))
        return (*grads, None, None, None)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], seed: Tensor, samples: int, single: bool
) -> tuple[Tensor, Tensor]:
    return LocalLinearFunction.apply(x, *layers[0], seed, samples, single)


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], seed: Tensor, samples: int
) -> tuple[Tensor, Tensor]:
    return reference.local_linear(x, *layers[0], seed=seed, samples=samples)


#: Arguments: seed, samples.
LOCAL_LINEAR = dispatch.Op("local_linear", _fused, _reference)


def local_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor | None = None,
    samples: int = 1,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The same layer by local reparametrisation: one draw per activation, from its exact moments.

    Lower variance than ``gated_linear`` at twice its matrix products; one indicator per weight only (the
    weights of a larger block are dependent, and independent activations would hide that). Arguments
    and results as in ``gated_linear``.
    """
    check_samples(samples)
    layer = LayerParameters(kappa, rho, omega, bias_kappa, bias_rho)
    check_parameters(layer, (1, 1))
    x, seed = dispatch.checked(x, kappa, samples, seed)
    return dispatch.call(LOCAL_LINEAR, x, (layer,), seed, samples, backend=backend)
