"""``mixture_linear``: the fused draw of ``gated_linear``, and a mixture prior's term at the same weights.

The formulas are in ``fastlbbnn.reference.mixture_linear``. The draw, its matrix products and its gradients
are those of the fused kernels; what the prior adds are a dozen elementwise passes over memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._util.checks import check_samples
from ..reference.mixture_linear import ScaleMixture, negative_posterior_entropy
from ..reference.noise import Stream
from ..reference.sums import softplus
from . import dispatch
from .checks import check_parameters
from .library import differentiable_once, padded
from .noise import compiled_noise
from .parameters import LayerParameters

_bwd = torch.ops.fastlbbnn.gated_linear_bwd.default
_fwd = torch.ops.fastlbbnn.gated_linear_fwd.default

#: One indicator per weight, temperature 1, hard: what a draw without indicators is called with.
_DRAW = (1, 1, 1.0, True)


def _drawn(saved: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and eps of all draws, [S, N, K], as views of what the fused pass keeps."""
    rows, cols = kappa.shape
    draws = saved.view(-1, rows, 2, padded(cols))
    return draws[:, :, 0, :cols], draws[:, :, 1, :cols]


def _bias_noise(seed: Tensor, samples: int, cols: int) -> Tensor:
    """eps of the biases, [S, N]."""
    return torch.cat(
        [compiled_noise(seed, "normal", 1, cols, stream=Stream.BIAS, sample=s) for s in range(samples)]
    )


def _density_and_slope(w: Tensor, prior: ScaleMixture) -> tuple[Tensor, Tensor]:
    """sum log p(w), and -d log p/dw = w (1/v1 + d sigmoid(t)), like w.

    With u = 1 + exp(t), softplus(t) is log u and sigmoid(t) is 1 - 1/u. t is at most c, which is far from
    an overflow. -w^2/(2 v1) is (t - c)/(d v1).
    """
    t = torch.addcmul(w.new_tensor(prior.c), w, w, value=-0.5 * prior.d)
    wide_part = (t.sum() - prior.c * w.numel()) / (prior.d * prior.wide)
    u = t.exp_().add_(1.0)
    log_p = u.log().sum() + wide_part + prior.log_peak * w.numel()
    return log_p, u.reciprocal_().mul_(-prior.d).add_(1.0 / prior.wide + prior.d).mul_(w)


class MixtureLinearFunction(torch.autograd.Function):
    """Autograd around the fused passes of the C++ backend. Arguments are checked already."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kappa: Tensor, rho: Tensor, bias_kappa: Tensor | None, bias_rho: Tensor | None,
        seed: Tensor, samples: int, prior: ScaleMixture, single: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        layer = LayerParameters(kappa, rho, None, bias_kappa, bias_rho)
        y, sums, saved = _fwd(x, *layer, seed, samples, *_DRAW, True)
        log_p, slope = _density_and_slope(_drawn(saved, kappa)[0], prior)
        bias_eps = bias_slope = None
        if bias_kappa is not None and bias_rho is not None:
            bias_eps = _bias_noise(seed, samples, bias_kappa.numel())
            b = torch.addcmul(bias_kappa, softplus(bias_rho), bias_eps)
            bias_log_p, bias_slope = _density_and_slope(b, prior)
            log_p = log_p + bias_log_p
        if any(ctx.needs_input_grad[:5]):
            ctx.save_for_backward(
                x, kappa, rho, bias_kappa, bias_rho, saved, seed, slope, bias_slope, bias_eps
            )
            ctx.samples = samples
        return (y.squeeze(0) if single else y), negative_posterior_entropy(sums) - log_p / samples

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dkl: Tensor) -> Any:
        x, kappa, rho, bias_kappa, bias_rho, saved, seed, slope, bias_slope, bias_eps = ctx.saved_tensors
        layer = LayerParameters(kappa, rho, None, bias_kappa, bias_rho)
        need_dx = ctx.needs_input_grad[0]
        with torch.no_grad():
            # Only T of the five sums enters, with -1/2 from the posterior's entropy.
            dsums = torch.zeros(5)
            dsums[3] = -0.5 * dkl
            dx, dkappa, drho, _, dbias_kappa, dbias_rho = _bwd(
                dy, dsums, x, *layer, saved, seed, ctx.samples, *_DRAW, need_dx
            )
            # w = kappa + tau eps and d tau/d rho = sigmoid(rho).
            scale = dkl / ctx.samples
            tau_slope = torch.sigmoid(rho).mul_(scale)
            for g, eps in zip(slope, _drawn(saved, kappa)[1]):
                dkappa.addcmul_(g, scale)
                drho.addcmul_(g * eps, tau_slope)
            if bias_kappa is not None:
                dbias_kappa.addcmul_(bias_slope.sum(0), scale)
                dbias_rho.addcmul_((bias_slope * bias_eps).sum(0), torch.sigmoid(bias_rho).mul_(scale))
        computed = (dx, dkappa, drho, dbias_kappa, dbias_rho)
        grads = tuple(g if want else None for g, want in zip(computed, ctx.needs_input_grad))
        grads = differentiable_once("mixture_linear", grads, (dy, dkl, x, *layer))
        return (*grads, *(None,) * 4)


def _fused(
    x: Tensor, layers: Sequence[LayerParameters], seed: Tensor, samples: int, prior: ScaleMixture,
    single: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kappa, rho, _, bias_kappa, bias_rho = layers[0]
    return MixtureLinearFunction.apply(x, kappa, rho, bias_kappa, bias_rho, seed, samples, prior, single)


def _reference(
    x: Tensor, layers: Sequence[LayerParameters], seed: Tensor, samples: int, prior: ScaleMixture
) -> tuple[Tensor, Tensor]:
    kappa, rho, _, bias_kappa, bias_rho = layers[0]
    return reference.mixture_linear(x, kappa, rho, bias_kappa, bias_rho, prior, seed=seed, samples=samples)


#: Arguments: seed, samples, prior.
MIXTURE_LINEAR = dispatch.Op("mixture_linear", _fused, _reference)


def mixture_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    bias_kappa: Tensor | None,
    bias_rho: Tensor | None,
    prior: ScaleMixture,
    *,
    seed: Tensor | None = None,
    samples: int = 1,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``gated_linear`` without gates, under a scale-mixture prior of weights and biases.

    The draws of weights are those of ``gated_linear``. Returns outputs ``[samples, M, N]`` and the
    estimate of the KL, in nats, at the same draws.
    """
    check_samples(samples)
    layer = LayerParameters(kappa, rho, None, bias_kappa, bias_rho)
    check_parameters(layer, (1, 1))
    x, seed = dispatch.checked(x, kappa, samples, seed)
    return dispatch.call(MIXTURE_LINEAR, x, (layer,), seed, samples, prior, backend=backend)
