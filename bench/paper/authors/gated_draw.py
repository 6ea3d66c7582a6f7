"""A layer's draw of gated weights and the sums that its objective needs, at the cost of a few passes.

The authors evaluate lgamma, exp and log for every weight. At temperature 0.001 all but about one gate in a
hundred is 0 or 1 to float precision and has no derivative; there the terms of literal.py are

    log q(w)      = g (-log tau - eps^2/2 - 1/2 log 2 pi)       d/dtau = -g / tau, nothing for mu
    log q(g)      = log alpha or log(1 - alpha)
    log p(g)      = lgamma(pb) for g = 1, lgamma(1 + pb) for g = 0, up to terms without g: two counts
    log p(w | g)  = a function of the sum of g and of the sum of w^2

so one backward pass in closed form covers them. The half-open gates, gathered, go through literal.py and
autograd itself. What is dropped: the guard 1e-8 inside log(N + guard), and gates below e^-40.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from . import literal

#: A gate counts as shut or open if its logit is beyond +-40 (sigmoid(-40) = 4e-18). This is the band in u
#: that holds all others, for every alpha: 40 T in the logit of u, and d sigmoid / d logit <= 1/4.
HALF_OPEN_BAND = 0.25 * 40.0 * literal.TEMPERATURE


def closed_forward(
    mu: Tensor, rho: Tensor, alpha: Tensor, u: Tensor, eps: Tensor, band: float
) -> tuple[Tensor, ...]:
    """All: [n]. w, g and the log-density of gates that are open or shut; one within ``band`` counts as shut.

    ``distance``: of u from the value where the gate turns, u + alpha = 1 or logit u + logit alpha = 0.
    """
    tau = rho.exp().log1p()
    distance = u + alpha - 1.0
    g = (distance > band).to(mu.dtype)
    w = g * (mu + tau * eps)
    log_q_w = -g * (tau.log() + 0.5 * eps * eps + literal.HALF_LOG_2PI)
    log_q_g = ((alpha + g - 1.0).abs() + literal.GUARD).log()
    return w, g, distance, g.sum(), (log_q_w + log_q_g).sum()


def closed_backward(
    d_w: Tensor, d_squares: Tensor, d_log_q: Tensor,
    rho: Tensor, alpha: Tensor, eps: Tensor, g: Tensor, w: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of mu, rho, alpha: [n]."""
    exp_rho = rho.exp()
    tau = exp_rho.log1p()
    d_mu = (d_w + 2.0 * d_squares * w) * g
    d_rho = (d_mu * eps - d_log_q * g / tau) * (exp_rho / (1.0 + exp_rho))
    # log(alpha + guard) for an open gate, log(1 - alpha + guard) for a shut one.
    d_alpha = d_log_q / (alpha + g - 1.0 + literal.GUARD * (2.0 * g - 1.0))
    return d_mu, d_rho, d_alpha


_forward, _backward = closed_forward, closed_backward


@functools.cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=True)


def use_compiled(compiled: bool) -> None:
    """Whether torch.compile fuses the passes over the weights, from now on in this process."""
    global _forward, _backward
    _forward, _backward = closed_forward, closed_backward
    if compiled:
        _forward, _backward = _compiled(closed_forward), _compiled(closed_backward)


class GatedDraw(torch.autograd.Function):
    """(mu, rho, alpha, u, eps: [out, in], pb: scalar or None, hard: bool) ->

    w          [out, in]  g (mu + tau eps), tau = log(1 + exp(rho))
    gates      sum g
    squares    sum w^2
    log_q      log q(w) + log q(g)
    log_prior  sum of lgamma(1 + pb - g) - lgamma(2 - g): what of log p(g) varies with g (0 without pb)

    ``hard``: g = 1[u > 1 - alpha], nothing is half open, alpha and pb are constants.
    """

    @staticmethod
    def forward(ctx, mu, rho, alpha, u, eps, pb, hard):
        shape = mu.shape
        mu, rho, alpha, u, eps = (t.detach().reshape(-1) for t in (mu, rho, alpha, u, eps))
        w, g, distance, opened, log_q = _forward(mu, rho, alpha, u, eps, 0.0 if hard else HALF_OPEN_BAND)
        gates, log_prior, half_open = opened, mu.new_zeros(()), None
        if not hard:
            # A quarter of the time of torch's nonzero.
            index = torch.from_numpy(np.flatnonzero(np.abs(distance.numpy()) < HALF_OPEN_BAND))
            half_open = _HalfOpen(index, mu, rho, alpha, u, eps, pb)
            w.index_copy_(0, index, half_open.w.detach())
            gates = opened + half_open.gates.detach()
            taken_as_shut = (1.0 - alpha.index_select(0, index) + literal.GUARD).log().sum()
            log_q = log_q - taken_as_shut + half_open.log_q.detach()
            if pb is not None:
                shut = g.numel() - index.numel() - opened
                log_prior = opened * torch.lgamma(pb) + shut * torch.lgamma(1.0 + pb)
                log_prior = log_prior + half_open.log_prior.detach()
        ctx.save_for_backward(rho, alpha, eps, g, w, pb)
        ctx.half_open, ctx.shape, ctx.opened = half_open, shape, opened
        if hard:
            ctx.mark_non_differentiable(gates, log_prior)
        return w.view(shape), gates, torch.dot(w, w), log_q, log_prior

    @staticmethod
    def backward(ctx, d_w, d_gates, d_squares, d_log_q, d_log_prior):
        rho, alpha, eps, g, w, pb = ctx.saved_tensors
        d_w = d_w.reshape(-1)
        gradients = _backward(d_w, d_squares, d_log_q, rho, alpha, eps, g, w)
        d_pb = None
        if ctx.half_open is not None:
            index = ctx.half_open.index
            small = ctx.half_open.backward(d_w, d_gates, d_squares, d_log_q, d_log_prior)
            for dense, part in zip(gradients, small):
                dense.index_copy_(0, index, part)
            if pb is not None:
                shut = g.numel() - index.numel() - ctx.opened
                d_pb = ctx.opened * torch.digamma(pb) + shut * torch.digamma(1.0 + pb)
                d_pb = d_log_prior * d_pb + small[3]
        d_mu, d_rho, d_alpha = (t.view(ctx.shape) for t in gradients)
        return d_mu, d_rho, None if ctx.half_open is None else d_alpha, None, None, d_pb, None


class _HalfOpen:
    """The weights at ``index`` of [n] by the literal terms, with a graph of their own."""

    def __init__(
        self, index: Tensor, mu: Tensor, rho: Tensor, alpha: Tensor, u: Tensor, eps: Tensor, pb: Tensor | None
    ) -> None:
        self.index = index
        mu, rho, alpha = (t.index_select(0, index).requires_grad_() for t in (mu, rho, alpha))
        self.leaves = [mu, rho, alpha]
        with torch.enable_grad():
            tau = rho.exp().log1p()
            g = literal.relaxed_gate(alpha, u.index_select(0, index))
            self.w = g * (mu + tau * eps.index_select(0, index))
            self.gates = g.sum()
            self.squares = self.w.square().sum()
            self.log_q = literal.log_q_weights(self.w, g, mu, tau) + literal.log_q_indicators(g, alpha)
            self.log_prior = None
            if pb is not None:
                pb = pb.detach().requires_grad_()
                self.leaves.append(pb)
                self.log_prior = (torch.lgamma(1.0 + pb - g) - torch.lgamma(2.0 - g)).sum()

    def backward(
        self, d_w: Tensor, d_gates: Tensor, d_squares: Tensor, d_log_q: Tensor, d_log_prior: Tensor
    ) -> tuple[Tensor, ...]:
        """Gradients of mu, rho, alpha and, where it was given, pb."""
        outputs = [self.w, self.gates, self.squares, self.log_q]
        gradients = [d_w.index_select(0, self.index), d_gates, d_squares, d_log_q]
        if self.log_prior is not None:
            outputs.append(self.log_prior)
            gradients.append(d_log_prior)
        return torch.autograd.grad(outputs, self.leaves, gradients)

