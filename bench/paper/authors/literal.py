"""The LBBNN terms exactly as the authors' scripts compute them, one elementwise expression a line.

This is the specification of the `authors` objective: slow, and wrong in the ways that the README lists. The
fast form (gated_draw.py, lbbnn.py) is tested against it, and uses it for the few half-open gates.

Shapes: g, w, mu, tau, alpha, u are [out, in] or any subset of those weights, flattened; a, b, t, pa, pb are
scalars of a layer (for biases a, b, t are [out] and g = 1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEMPERATURE = 1e-3
#: Added inside every logarithm.
GUARD = 1e-8
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def relaxed_gate(alpha: Tensor, u: Tensor) -> Tensor:
    """g = clip(sigmoid((logit u + logit alpha) / T)), as torch.distributions.RelaxedBernoulli clips."""
    info = torch.finfo(alpha.dtype)
    alpha = alpha.clamp(info.eps, 1.0 - info.eps)
    u = u.clamp(info.eps, 1.0 - info.eps)
    logits = (u.log() - (-u).log1p() + alpha.log() - (-alpha).log1p()) / TEMPERATURE
    return logits.sigmoid().clamp(info.tiny, 1.0 - info.eps)


def log_weight_prior(w: Tensor, g: Tensor | float, a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """sum g [a log b + (a - 1/2) t - b t - lgamma(a) - 1/2 log 2 pi] - t w^2 + (1 - g) + guard.

    Meant as the Normal-Gamma density of (w, t) and the spike's point mass.
    """
    slab = a * b.log() + (a - 0.5) * t - b * t - torch.lgamma(a) - HALF_LOG_2PI
    return (g * slab - t * w * w + (1.0 - g) + GUARD).sum()


def log_indicator_prior(g: Tensor, pa: Tensor, pb: Tensor) -> Tensor:
    """Meant as the Beta-Binomial: lgamma(g + pa) enters with both signs."""
    one = torch.ones_like(pa)
    return (
        torch.lgamma(one)
        + torch.lgamma(g + pa)
        + torch.lgamma(1.0 + pb - g)
        + torch.lgamma(pa + pb)
        - torch.lgamma(pa + g)
        - torch.lgamma(2.0 - g)
        - torch.lgamma(1.0 + pa + pb)
        - torch.lgamma(pa)
        - torch.lgamma(pb)
    ).sum()


def gaussian_log_density(w: Tensor, mu: Tensor | float, tau: Tensor) -> Tensor:
    return -HALF_LOG_2PI - tau.log() - (w - mu) ** 2 / (2.0 * tau * tau)


def log_q_weights(w: Tensor, g: Tensor, mu: Tensor, tau: Tensor) -> Tensor:
    """sum log(g N(w; mu, tau^2) + (1 - g) + guard), at the gated weight w = g (mu + tau eps)."""
    return (g * gaussian_log_density(w, mu, tau).exp() + (1.0 - g) + GUARD).log().sum()


def log_q_indicators(g: Tensor, alpha: Tensor) -> Tensor:
    return (g * (alpha + GUARD).log() + (1.0 - g) * (1.0 - alpha + GUARD).log()).sum()


class Draw(NamedTuple):
    """A layer's draw, and log q - log p at it."""

    w: Tensor
    bias: Tensor
    divergence: Tensor
    g: Tensor
    eps: Tensor


def draw(layer: nn.Module) -> Draw:
    """A draw of an lbbnn.AuthorsLayer with every term as above, and the layer's order of noise."""
    u, eps = torch.rand_like(layer.mu), torch.randn_like(layer.mu)
    alpha = layer.inclusion()
    tau = F.softplus(layer.rho)
    g = (u + alpha > 1.0).to(u.dtype) if layer.exact.gates else relaxed_gate(alpha, u)
    w = g * (layer.mu + tau * eps)
    rounded = g.detach().round()

    t = torch.distributions.Gamma(layer.weight_a, layer.weight_b).rsample()
    weight_g = rounded if layer.exact.weight_prior else g
    log_p = log_weight_prior(w, weight_g, layer.weight_a, layer.weight_b, t)
    prior_g = rounded if layer.exact.indicator_prior else g
    log_p = log_p + log_indicator_prior(prior_g, layer.pa, layer.pb)
    log_q = log_q_weights(w, g, layer.mu, tau) + log_q_indicators(g, alpha)

    bias_tau = F.softplus(layer.bias_rho)
    bias = layer.bias_mu + bias_tau * torch.randn_like(layer.bias_mu)
    bias_t = torch.distributions.Gamma(layer.bias_a, layer.bias_b).rsample()
    log_p = log_p + log_weight_prior(bias, 1.0, layer.bias_a, layer.bias_b, bias_t)
    log_q = log_q + gaussian_log_density(bias, layer.bias_mu, bias_tau).sum()
    return Draw(w, bias, log_q - log_p, g, eps)
