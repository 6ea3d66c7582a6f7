"""Forward of the gated linear map: noise, gates, weights, matrix product and KL sums in one kernel.

    w[s, n, k] = g (kappa + tau eps),    y[s, m, n] = sum_k x[s, m, k] w[s, n, k] + b[s, n]

A program owns an output tile [BM, BN] of one sample and walks along K. A tile of weights [BN, BK]
is made in registers from its parameters and the counter-based noise, goes to the tensor cores, and
is gone: no weight is written to memory.

Cost of a weight, per tile of the batch: 12 bytes of parameters (float32; 8 without gates) and about
200 lane instructions (the sm_80 input-gradient kernel, which samples and makes no sums, has 1,976
instructions for eight weights a thread, prologue included), against BM multiply-accumulates. By its
published limits an A100 does 9.7e12 lane instructions, 1.6e12 bytes and 1.56e14 bfloat16
multiply-accumulates a second: 20 ps, 8 ps and BM * 0.0064 ps. So, by this model (nothing has been
timed on a GPU),

- with the batch in one tile a weight is sampled once and the work is bound by instructions, the
  memory traffic hidden behind it and the product nearly free;
- sampling again for every tile of a larger batch would cost 20 ps a tile, while a sampled weight
  that is staged costs one write and a read a tile through L2: 2 + 2 bytes at about 5e12 a second,
  0.8 ps. So batches of more than one tile sample into a workspace (``_gated_weights_kernel``) that
  is kept small enough to stay in L2, and the same kernel below, with ``STAGED``, multiplies from
  there. Layers so small that the second launch (about 4 us) costs more than sampling again, sample
  again.

Narrow layers have too few output tiles to fill a GPU. Then K is cut into ``splits`` pieces whose
float32 partial outputs a second pass (``_finish_outputs_kernel``) adds in their order.

The order of programs: those that read the same parameters (tiles of the batch, samples) run next to
each other; staged, those that read the same rows of x.
"""

import triton.language as tl

from .compiled import kernel
from .posterior import softplus
from .weights import draw_tile, load_float, load_omega, sample_bias, store_partials, sum_terms


@kernel
def _gated_linear_fwd_kernel(
    y_ptr, partials_ptr, x_ptr, weights_ptr, kappa_ptr, rho_ptr, omega_ptr, gates_ptr,
    bias_kappa_ptr, bias_rho_ptr, seed_ptr,
    samples, M, N, K, x_sample_stride, first_row, rows, splits, grid_rows, grid_cols, block_rows,
    block_cols, inv_temperature,
    GATES: tl.constexpr, HARD: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
    STAGED: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y: [S, M, N], or with SPLIT float32 partial outputs [splits, S, M, N].

    Rows first_row .. first_row + rows of the weights; ``weights``: [S, rows, K] when STAGED, else
    unused. ``partials``: [n tiles, splits, 4], written by the first tile of the batch and sample.
    """
    m_tiles = tl.cdiv(M, BM)
    n_tiles = tl.cdiv(rows, BN)
    pid = tl.program_id(0)
    if STAGED:
        n_tile = pid % n_tiles
        m_tile = (pid // n_tiles) % m_tiles
        split = (pid // (n_tiles * m_tiles)) % splits
        sample = pid // (n_tiles * m_tiles * splits)
    else:
        m_tile = pid % m_tiles
        sample = (pid // m_tiles) % samples
        split = (pid // (m_tiles * samples)) % splits
        n_tile = pid // (m_tiles * samples * splits)

    m = m_tile * BM + tl.arange(0, BM)
    n = first_row + n_tile * BN + tl.arange(0, BN)
    inside_m = m < M
    inside_n = n < first_row + rows
    x_rows = x_ptr + tl.cast(sample, tl.int64) * x_sample_stride + m.to(tl.int64)[:, None] * K
    weight_rows = n.to(tl.int64)[:, None] * K
    staged_rows = (tl.cast(sample, tl.int64) * rows + (n - first_row))[:, None] * K

    seed = tl.load(seed_ptr)
    with_sums = (m_tile == 0) & (sample == 0)
    H = tl.zeros([BN, BK], tl.float32)
    A = tl.zeros([BN, BK], tl.float32)
    T = tl.zeros([BN, BK], tl.float32)
    S = tl.zeros([BN, BK], tl.float32)
    acc = tl.zeros([BM, BN], tl.float32)

    step = tl.cdiv(tl.cdiv(K, BK), splits) * BK
    for first_k in range(split * step, tl.minimum(K, (split + 1) * step), BK):
        k = first_k + tl.arange(0, BK)[None, :]
        x = tl.load(x_rows + k, mask=inside_m[:, None] & (k < K), other=0.0)
        inside = inside_n[:, None] & (k < K)
        if STAGED:
            w = tl.load(weights_ptr + staged_rows + k, mask=inside, other=0.0)
        else:
            offset = weight_rows + k
            kappa = load_float(kappa_ptr, offset, inside)
            rho = load_float(rho_ptr, offset, inside)
            omega = load_omega(
                omega_ptr, offset, n[:, None], k, inside, grid_cols, block_rows, block_cols, GATES
            )
            eps, gate, _ = draw_tile(
                seed, sample, n[:, None], first_k, k, inside, omega, gates_ptr, grid_rows,
                grid_cols, block_rows, block_cols, inv_temperature, BK, GATES, HARD,
            )  # fmt: skip
            tau, t = softplus(rho)
            w = (gate * tl.fma(tau, eps, kappa)).to(x_ptr.dtype.element_ty)
            if with_sums:
                dH, dA, dT, dS = sum_terms(kappa, rho, tau, t, omega, inside, GATES)
                H += dH
                A += dA
                T += dT
                S += dS
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)

    if not STAGED:
        if with_sums:
            store_partials(partials_ptr, n_tile * splits + split, H, A, T, S)

    y_offset = tl.cast(sample, tl.int64) * M * N + m.to(tl.int64)[:, None] * N + n[None, :]
    inside_y = inside_m[:, None] & inside_n[None, :]
    if SPLIT:
        tl.store(y_ptr + split.to(tl.int64) * samples * M * N + y_offset, acc, mask=inside_y)
    else:
        if HAS_BIAS:
            acc += sample_bias(bias_kappa_ptr, bias_rho_ptr, seed, sample, n, inside_n)[None, :]
        if RELU:
            acc = tl.where(acc < 0.0, 0.0, acc)  # a NaN stays one
        tl.store(y_ptr + y_offset, acc.to(y_ptr.dtype.element_ty), mask=inside_y)


@kernel
def _gated_weights_kernel(
    weights_ptr, partials_ptr, kappa_ptr, rho_ptr, omega_ptr, gates_ptr, seed_ptr,
    samples, K, first_row, rows, first_col, cols, grid_rows, grid_cols, block_rows, block_cols,
    inv_temperature,
    GATES: tl.constexpr, HARD: tl.constexpr, DRAW: tl.constexpr, SUMS: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The draws of rows first_row .. + rows and columns first_col .. + cols: ``weights`` [S, rows,
    cols].

    first_col is a multiple of four. ``partials``: [tiles, 4], of sample 0. Without DRAW only the
    sums.
    """
    k_tiles = tl.cdiv(cols, BK)
    pid = tl.program_id(0)
    sample = pid % samples
    k_tile = (pid // samples) % k_tiles
    n_tile = pid // (samples * k_tiles)
    n = first_row + n_tile * BN + tl.arange(0, BN)[:, None]
    first_k = first_col + k_tile * BK
    k = first_k + tl.arange(0, BK)[None, :]
    inside = (n < first_row + rows) & (k < first_col + cols)
    offset = n.to(tl.int64) * K + k
    kappa = load_float(kappa_ptr, offset, inside)
    rho = load_float(rho_ptr, offset, inside)
    omega = load_omega(omega_ptr, offset, n, k, inside, grid_cols, block_rows, block_cols, GATES)
    tau, t = softplus(rho)
    if DRAW:
        seed = tl.load(seed_ptr)
        eps, gate, _ = draw_tile(
            seed, sample, n, first_k, k, inside, omega, gates_ptr, grid_rows, grid_cols, block_rows,
            block_cols, inv_temperature, BK, GATES, HARD,
        )  # fmt: skip
        w = gate * tl.fma(tau, eps, kappa)
        place = (tl.cast(sample, tl.int64) * rows + (n - first_row)) * cols + (k - first_col)
        tl.store(weights_ptr + place, w.to(weights_ptr.dtype.element_ty), mask=inside)
    if SUMS:
        if sample == 0:
            H, A, T, S = sum_terms(kappa, rho, tau, t, omega, inside, GATES)
            store_partials(partials_ptr, n_tile * k_tiles + k_tile, H, A, T, S)


@kernel
def _finish_outputs_kernel(
    y_ptr, parts_ptr, bias_kappa_ptr, bias_rho_ptr, seed_ptr, samples, M, N, splits,
    HAS_BIAS: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """y [S, M, N] = the sum of its parts [splits, S, M, N], in their order, then bias and ReLU."""
    m_tiles = tl.cdiv(M, BM)
    n_tiles = tl.cdiv(N, BN)
    pid = tl.program_id(0)
    n_tile = pid % n_tiles
    m_tile = (pid // n_tiles) % m_tiles
    sample = pid // (n_tiles * m_tiles)
    m = m_tile * BM + tl.arange(0, BM)
    n = n_tile * BN + tl.arange(0, BN)
    inside_n = n < N
    inside = (m < M)[:, None] & inside_n[None, :]
    offset = tl.cast(sample, tl.int64) * M * N + m.to(tl.int64)[:, None] * N + n[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for split in range(splits):
        part = parts_ptr + tl.cast(split, tl.int64) * samples * M * N
        acc += tl.load(part + offset, mask=inside, other=0.0)
    if HAS_BIAS:
        seed = tl.load(seed_ptr)
        acc += sample_bias(bias_kappa_ptr, bias_rho_ptr, seed, sample, n, inside_n)[None, :]
    if RELU:
        acc = tl.where(acc < 0.0, 0.0, acc)
    tl.store(y_ptr + offset, acc.to(y_ptr.dtype.element_ty), mask=inside)
