"""Tiles of weights: parameters loaded, one draw made, the terms of the five sums.

Shared by every kernel that touches weights. ``n`` is a column [BN, 1] and ``k`` a row [1, BK] of
int32 indices, ``k[0]`` a multiple of four. Lanes outside the layer (``inside`` false) load zeros;
what they compute is finite and multiplied by zeros or masked.
"""

import triton
import triton.language as tl

from .noise import BIAS, WEIGHT, gated_tile, normal_at, normal_tile
from .posterior import (
    BLOCKS,
    DENSE,
    ELEMENTWISE,
    gate_pair,
    log_tau,
    negative_entropy,
    sigmoid_pair,
    softplus,
)


@triton.jit
def load_float(ptr, offset, inside):
    return tl.load(ptr + offset, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def block_offset(n, k, grid_cols, block_rows, block_cols):
    """Where the block of each weight stands in the grid of blocks."""
    return (n // block_rows).to(tl.int64) * grid_cols + k // block_cols


@triton.jit
def load_omega(
    omega_ptr, offset, n, k, inside, grid_cols, block_rows, block_cols, GATES: tl.constexpr
):
    """Every weight's logit; zeros where there are none."""
    if GATES == ELEMENTWISE:
        omega = load_float(omega_ptr, offset, inside)
    elif GATES == BLOCKS:
        omega = load_float(omega_ptr, block_offset(n, k, grid_cols, block_rows, block_cols), inside)
    else:
        omega = tl.zeros(offset.shape, tl.float32)
    return omega


@triton.jit
def draw_tile(
    seed, sample, n, first_k, k, inside, omega, gates_ptr, grid_rows, grid_cols, block_rows,
    block_cols, inv_temperature, BK: tl.constexpr, GATES: tl.constexpr, HARD: tl.constexpr,
):  # fmt: skip
    """eps, the gate and one minus the gate of every weight. Gates of blocks are drawn already."""
    group = first_k // 4 + tl.arange(0, BK // 4)[None, :]
    if GATES == ELEMENTWISE:
        eps, noise = gated_tile(seed, sample, n, group)
        gate, rest = gate_pair(omega, noise, inv_temperature, HARD)
    else:
        eps = normal_tile(seed, WEIGHT, sample, n, group)
        gate = tl.full(eps.shape, 1.0, tl.float32)
        if GATES == BLOCKS:
            grid = gates_ptr + tl.cast(sample, tl.int64) * grid_rows * grid_cols
            offset = block_offset(n, k, grid_cols, block_rows, block_cols)
            gate = tl.load(grid + offset, mask=inside, other=0.0)
        rest = 1.0 - gate
    return eps, gate, rest


@triton.jit
def sum_terms(kappa, rho, tau, t, omega, inside, GATES: tl.constexpr):
    """A weight's part of H, A_w, T and S; H only of elementwise indicators (blocks count once)."""
    zero = tl.zeros(kappa.shape, tl.float32)
    if GATES == DENSE:
        alpha = zero + 1.0
        H = zero
    else:
        alpha, rest, e = sigmoid_pair(omega)
        H = zero
        if GATES == ELEMENTWISE:
            H = tl.where(inside, negative_entropy(omega, alpha, rest, e), 0.0)
    alpha = tl.where(inside, alpha, 0.0)
    T = alpha * (2.0 * log_tau(rho, tau, t))
    S = alpha * tl.fma(kappa, kappa, tau * tau)
    return H, alpha, T, S


@triton.jit
def store_partials(ptr, row, H, A, T, S):
    """One program's part of H, A_w, T and S."""
    tl.store(ptr + row * 4, tl.sum(tl.sum(H, 1), 0))
    tl.store(ptr + row * 4 + 1, tl.sum(tl.sum(A, 1), 0))
    tl.store(ptr + row * 4 + 2, tl.sum(tl.sum(T, 1), 0))
    tl.store(ptr + row * 4 + 3, tl.sum(tl.sum(S, 1), 0))


@triton.jit
def sample_bias(bias_kappa_ptr, bias_rho_ptr, seed, sample, n, inside):
    """b = kappa + tau eps for columns n [BN].

    The sum over an axis of one element changes nothing; it keeps the compiler from making the noise
    in the layout of the output tile, in which every thread would make that of many columns.
    """
    tau, _ = softplus(load_float(bias_rho_ptr, n, inside))
    eps = normal_at(seed, BIAS, sample, 0, n)
    bias = load_float(bias_kappa_ptr, n, inside) + tau * eps
    return tl.sum(bias[:, None], 1)
