"""The paper's estimator: one draw of gates and weights, then a linear map (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .noise import Stream, gate_logistics, normals
from .parameters import LayerParameters
from .sums import expand_blocks, kl_sums, log_softplus, softplus


def sample_gates(
    omega: Tensor, *, seed: Tensor, sample: int, block: tuple[int, int], temperature: float, hard: bool
) -> Tensor:
    """Concrete gates on the grid of blocks: g = sigmoid((omega - logit(u)) / delta).

    ``hard`` is their limit, g = 1[omega > logit(u)], a Bernoulli(alpha) draw.
    """
    noise = gate_logistics(seed, sample, *omega.shape, *block).to(omega.dtype)
    if hard:
        return (omega > noise).to(omega.dtype)
    return torch.sigmoid((omega - noise) / temperature)


def sample_weights(
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    *,
    seed: Tensor,
    sample: int = 0,
    block: tuple[int, int] = (1, 1),
    temperature: float = 1.0,
    hard: bool = False,
) -> Tensor:
    """w = g (kappa + tau eps), [N, K]."""
    rows, cols = kappa.shape
    eps = normals(seed, Stream.WEIGHT, sample, rows, cols).to(kappa.dtype)
    w = kappa + softplus(rho) * eps
    if omega is None:
        return w
    gates = sample_gates(
        omega, seed=seed, sample=sample, block=block, temperature=temperature, hard=hard
    )
    return expand_blocks(gates, rows, cols, block) * w


def sample_bias(bias_kappa: Tensor, bias_rho: Tensor, *, seed: Tensor, sample: int = 0) -> Tensor:
    """b = kappa + tau eps, [N]; biases are never gated."""
    eps = normals(seed, Stream.BIAS, sample, 1, bias_kappa.numel())[0].to(bias_kappa.dtype)
    return bias_kappa + softplus(bias_rho) * eps


def gated_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor,
    samples: int = 1,
    block: tuple[int, int] = (1, 1),
    temperature: float = 1.0,
    hard: bool = False,
) -> tuple[Tensor, Tensor]:
    """``x: [M, K]`` (shared) or ``[S, M, K]`` -> ``y: [S, M, N]`` and the five sums ``[5]``.

    An ``x`` of another dtype than the parameters' is converted to theirs, and ``y`` back to its own.
    """
    given, x = x.dtype, x.to(kappa.dtype)
    outputs = []
    for s in range(samples):
        w = sample_weights(
            kappa, rho, omega, seed=seed, sample=s, block=block, temperature=temperature, hard=hard
        )
        y = (x if x.dim() == 2 else x[s]) @ w.T
        if bias_kappa is not None and bias_rho is not None:
            y = y + sample_bias(bias_kappa, bias_rho, seed=seed, sample=s)
        outputs.append(y)
    return torch.stack(outputs).to(given), kl_sums(kappa, rho, omega, bias_kappa, bias_rho, block=block)


def gated_mlp(
    x: Tensor,
    parameters: Sequence[LayerParameters],
    *,
    seeds: Tensor,
    samples: int = 1,
    blocks: Sequence[tuple[int, int]],
    temperatures: Sequence[float],
    hard: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gated layers with ReLU between them: outputs ``[S, M, N]`` and sums ``[layers, 5]``."""
    sums = []
    for i, layer in enumerate(parameters):
        x, layer_sums = gated_linear(
            x if i == 0 else torch.relu(x), *layer, seed=seeds[i], samples=samples, block=blocks[i],
            temperature=temperatures[i], hard=hard,
        )
        sums.append(layer_sums)
    return x, torch.stack(sums)


def sampled_kl_sums(
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor,
    sample: int = 0,
    block: tuple[int, int] = (1, 1),
    temperature: float = 1.0,
    hard: bool = False,
) -> Tensor:
    """The five sums of the paper's own KL estimate: log q - log p at the (relaxed) draw.

    Each sum is the one of ``kl_sums`` with alpha replaced by the gate g and the expectation over the
    weight beta = kappa + tau eps by its value,

        H = g log(alpha) + (1-g) log(1-alpha),   T = g (log tau^2 + eps^2 - 1),   S = g beta^2,

    so that the KL formula gives log q - log p at the draw, and at hard gates the same expectation.
    """
    rows, cols = kappa.shape

    def weight_sums(mean: Tensor, rho: Tensor, eps: Tensor, g: Tensor | float) -> tuple[Tensor, Tensor]:
        beta = mean + softplus(rho) * eps
        T = g * (2.0 * log_softplus(rho) + eps.square() - 1.0)
        return T.sum(), (g * beta.square()).sum()

    eps = normals(seed, Stream.WEIGHT, sample, rows, cols).to(kappa.dtype)
    if omega is None:
        H = A = kappa.new_zeros(())
        A_w = kappa.new_full((), float(rows * cols))
        T, S = weight_sums(kappa, rho, eps, 1.0)
    else:
        g = sample_gates(
            omega, seed=seed, sample=sample, block=block, temperature=temperature, hard=hard
        )
        # log(alpha) = omega - softplus(omega), log(1-alpha) = -softplus(omega)
        H, A = (g * omega - softplus(omega)).sum(), g.sum()
        g_w = expand_blocks(g, rows, cols, block)
        A_w = g_w.sum()
        T, S = weight_sums(kappa, rho, eps, g_w)
    if bias_kappa is not None and bias_rho is not None:
        eps = normals(seed, Stream.BIAS, sample, 1, rows)[0].to(kappa.dtype)
        bias_T, bias_S = weight_sums(bias_kappa, bias_rho, eps, 1.0)
        A_w, T, S = A_w + float(rows), T + bias_T, S + bias_S
    return torch.stack((H, A, A_w, T, S))
