"""``mixture_linear``: the fused draw of ``gated_linear``, and a mixture prior's term at the same weights.

The formulas are in ``fastlbbnn.reference.mixture_linear``. The draw, its matrix products and its gradients
are those of the fused kernels; what the prior adds are a dozen elementwise passes over memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference.mixture_linear import ScaleMixture, negative_posterior_entropy
from ..reference.noise import Stream
from ..reference.sums import softplus
from .gated_linear import _gated_linear_bwd, _gated_linear_fwd
from .inspect import noise
from .library import differentiable_once, padded

#: One indicator a weight, temperature 1, hard: what a draw without indicators is called with.
_DRAW = (1, 1, 1.0, True)


def _drawn(saved: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and eps of all draws, [S, N, K], as views of what the fused pass keeps."""
    rows, cols = kappa.shape
    draws = saved.view(-1, rows, 2, padded(cols))
    return draws[:, :, 0, :cols], draws[:, :, 1, :cols]


def _bias_noise(seed: Tensor, samples: int, cols: int) -> Tensor:
    """eps of the biases, [S, N]."""
    return torch.cat(
        [noise(seed, "normal", 1, cols, stream=Stream.BIAS, sample=s) for s in range(samples)]
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
    """Autograd around the fused passes of the C++ backend. Arguments are checked already.

    ``single`` leaves out the sample axis of a single draw.
    """

    @staticmethod
    def forward(ctx, x, kappa, rho, bias_kappa, bias_rho, seed, samples, prior, single):
        parameters = (kappa, rho, None, bias_kappa, bias_rho)
        y, sums, saved = _gated_linear_fwd(x, *parameters, seed, samples, *_DRAW, True)
        log_p, slope = _density_and_slope(_drawn(saved, kappa)[0], prior)
        bias_eps = bias_slope = None
        if bias_kappa is not None:
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
    def backward(ctx, dy: Tensor, dkl: Tensor):
        x, kappa, rho, bias_kappa, bias_rho, saved, seed, slope, bias_slope, bias_eps = ctx.saved_tensors
        parameters = (kappa, rho, None, bias_kappa, bias_rho)
        need_dx = ctx.needs_input_grad[0]
        with torch.no_grad():
            # Of the five sums only T enters, with -1/2 from the posterior's entropy.
            dsums = torch.zeros(5)
            dsums[3] = -0.5 * dkl
            dx, dkappa, drho, _, dbias_kappa, dbias_rho = _gated_linear_bwd(
                dy, dsums, x, *parameters, saved, seed, ctx.samples, *_DRAW, need_dx
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
        grads = (dx, dkappa, drho, dbias_kappa, dbias_rho)
        grads = tuple(g if want else None for g, want in zip(grads, ctx.needs_input_grad))
        grads = differentiable_once("mixture_linear", grads, (dy, dkl, x, *parameters))
        return (*grads, *(None,) * 4)
