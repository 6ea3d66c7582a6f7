"""The five sums, finished in a fixed order, and the indicators of blocks.

Kernels that pass over the weights leave one row of partial sums a program. One program then adds
them, always in the same order and in float64, so the same call gives the same bits; no atomics.
"""

import triton
import triton.language as tl

from .compiled import kernel
from .noise import block_logistic
from .posterior import BLOCKS, DENSE, gate_pair, log_tau, negative_entropy, sigmoid_pair, softplus
from .weights import load_float


@kernel
def _block_gates_kernel(
    gates_ptr, partials_ptr, omega_ptr, seed_ptr, samples, grid_rows, grid_cols, block_rows,
    block_cols, inv_temperature, HARD: tl.constexpr, DRAW: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gates [S, grid rows, grid cols] of blocks, one uniform a block, and partials [tiles, 2] of H
    and A.

    Indicators of blocks are few: they are drawn once, ahead of the kernels that spread them over
    the weights.
    """
    k_tiles = tl.cdiv(grid_cols, BK)
    pid = tl.program_id(0)
    n = (pid // k_tiles) * BN + tl.arange(0, BN)[:, None]
    k = (pid % k_tiles) * BK + tl.arange(0, BK)[None, :]
    inside = (n < grid_rows) & (k < grid_cols)
    offset = n.to(tl.int64) * grid_cols + k
    omega = load_float(omega_ptr, offset, inside)
    if DRAW:
        seed = tl.load(seed_ptr)
        for sample in range(samples):
            noise = block_logistic(seed, sample, n, k, block_rows, block_cols)
            gate, _ = gate_pair(omega, noise, inv_temperature, HARD)
            plane = tl.cast(sample, tl.int64) * grid_rows * grid_cols
            tl.store(gates_ptr + plane + offset, gate, mask=inside)
    alpha, rest, e = sigmoid_pair(omega)
    H = tl.where(inside, negative_entropy(omega, alpha, rest, e), 0.0)
    A = tl.where(inside, alpha, 0.0)
    tl.store(partials_ptr + pid * 2, tl.sum(tl.sum(H, 1), 0))
    tl.store(partials_ptr + pid * 2 + 1, tl.sum(tl.sum(A, 1), 0))


@triton.jit
def _column_sums(ptr, rows, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """Sums over the rows of a table of WIDTH columns, in float64 and in a fixed order: [WIDTH].

    All columns at a time: each trip waits for memory once.
    """
    column = tl.arange(0, WIDTH)[None, :]
    total = tl.zeros([CHUNK, WIDTH], tl.float64)
    for first in range(0, rows, CHUNK):
        i = first + tl.arange(0, CHUNK)[:, None]
        total += tl.load(ptr + i * WIDTH + column, mask=i < rows, other=0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def _entry(values, i: tl.constexpr, WIDTH: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, WIDTH) == i, values, 0.0), 0)


@kernel
def _kl_finish_kernel(
    sums_ptr, partials_ptr, block_partials_ptr, bias_kappa_ptr, bias_rho_ptr,
    partial_rows, block_rows, N, weights, biases,
    GATES: tl.constexpr, HAS_BIAS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """H, A, A_w, T and S of the layer. ``weights``, ``biases``: how many, as floats."""
    sums = _column_sums(partials_ptr, partial_rows, 4, CHUNK)
    T = _entry(sums, 2, 4)
    S = _entry(sums, 3, 4)
    if GATES == DENSE:
        H = 0.0
        A = 0.0
        A_w = tl.sum(tl.zeros([CHUNK], tl.float64), 0) + weights
    else:
        A_w = _entry(sums, 1, 4)
        if GATES == BLOCKS:
            of_blocks = _column_sums(block_partials_ptr, block_rows, 2, CHUNK)
            H = _entry(of_blocks, 0, 2)
            A = _entry(of_blocks, 1, 2)
        else:
            H = _entry(sums, 0, 4)
            A = A_w
    if HAS_BIAS:
        # A bias is a weight that is always included.
        bias_T = tl.zeros([CHUNK], tl.float64)
        bias_S = tl.zeros([CHUNK], tl.float64)
        for first in range(0, N, CHUNK):
            n = first + tl.arange(0, CHUNK)
            inside = n < N
            kappa = load_float(bias_kappa_ptr, n, inside)
            rho = load_float(bias_rho_ptr, n, inside)
            tau, t = softplus(rho)
            T_n = 2.0 * log_tau(rho, tau, t)
            S_n = tl.fma(kappa, kappa, tau * tau)
            bias_T += tl.where(inside, T_n, 0.0).to(tl.float64)
            bias_S += tl.where(inside, S_n, 0.0).to(tl.float64)
        A_w += biases
        T += tl.sum(bias_T, 0)
        S += tl.sum(bias_S, 0)
    tl.store(sums_ptr, H)
    tl.store(sums_ptr + 1, A)
    tl.store(sums_ptr + 2, A_w)
    tl.store(sums_ptr + 3, T)
    tl.store(sums_ptr + 4, S)
