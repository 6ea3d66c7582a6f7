"""Backward of the gated linear map. Noise is regenerated; nothing of the weights' size was kept.

With dw = sum_m dy x, c the gradient of the five sums, and sums over the samples implied:

    d kappa = g dw + 2 c_S alpha kappa
    d tau   = g dw eps + 2 c_S alpha tau + 2 c_T alpha / tau,         d rho = d tau sigmoid(rho)
    d omega = dw w (1-g) / delta
            + alpha (1-alpha) (c_H omega + c_A + sum over the block's weights of
                               c_Aw + c_T log tau^2 + c_S (kappa^2 + tau^2))
    dx      = sum_n dy w

A program of the parameter kernel owns a tile of weights: it accumulates dw over the batch in
registers, draws the tile's noise once a sample however large the batch, and writes every gradient
once (or spends it on Adam). The gradients of a block's logit come from all its weights, so tiles
are cut along blocks: whole blocks in a tile, or one block in several tiles whose parts a second
kernel adds in order.

The input kernel samples weights like the forward, with the same cost model and the same staging.
"""

import triton
import triton.language as tl

from .adam import put_gradient
from .compiled import kernel
from .gradients import inclusion_cost, load_dsums, weight_gradients
from .posterior import DENSE, ELEMENTWISE, sigmoid_pair, softplus
from .weights import draw_tile, load_float, load_omega


@kernel
def _gated_linear_bwd_input_kernel(
    dx_ptr, dy_ptr, hidden_ptr, weights_ptr, kappa_ptr, rho_ptr, omega_ptr, gates_ptr, seed_ptr,
    samples, M, N, K, first_col, cols, splits, grid_rows, grid_cols, block_rows, block_cols,
    inv_temperature,
    GATES: tl.constexpr, HARD: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
    STAGED: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx: [S, M, K], with SHARED their sum [1, M, K]; with SPLIT float32 parts [splits, ...].

    Columns first_col .. first_col + cols of the weights; ``weights``: [S, N, cols] when STAGED.
    With MASKED, dx goes through the ReLU that made ``hidden`` [S, M, K].
    """
    m_tiles = tl.cdiv(M, BM)
    k_tiles = tl.cdiv(cols, BK)
    outputs = samples
    if SHARED:
        outputs = 1
    pid = tl.program_id(0)
    if STAGED:
        k_tile = pid % k_tiles
        m_tile = (pid // k_tiles) % m_tiles
        split = (pid // (k_tiles * m_tiles)) % splits
        output = pid // (k_tiles * m_tiles * splits)
    else:
        m_tile = pid % m_tiles
        output = (pid // m_tiles) % outputs
        split = (pid // (m_tiles * outputs)) % splits
        k_tile = pid // (m_tiles * outputs * splits)

    m = m_tile * BM + tl.arange(0, BM)
    first_k = first_col + k_tile * BK
    k = first_k + tl.arange(0, BK)[None, :]
    inside_m = (m < M)[:, None]
    inside_k = k < first_col + cols
    seed = tl.load(seed_ptr)
    acc = tl.zeros([BM, BK], tl.float32)
    step = tl.cdiv(tl.cdiv(N, BN), splits) * BN
    first_sample = output
    end_sample = output + 1
    if SHARED:
        first_sample = output * 0
        end_sample = output * 0 + samples
    for sample in range(first_sample, end_sample):
        dy_rows = dy_ptr + (tl.cast(sample, tl.int64) * M + m)[:, None] * N
        for first_n in range(split * step, tl.minimum(N, (split + 1) * step), BN):
            n = first_n + tl.arange(0, BN)
            dy = tl.load(dy_rows + n[None, :], mask=inside_m & (n < N)[None, :], other=0.0)
            n = n[:, None]
            inside = (n < N) & inside_k
            if STAGED:
                place = (tl.cast(sample, tl.int64) * N + n) * cols + (k - first_col)
                w = tl.load(weights_ptr + place, mask=inside, other=0.0)
            else:
                offset = n.to(tl.int64) * K + k
                kappa = load_float(kappa_ptr, offset, inside)
                rho = load_float(rho_ptr, offset, inside)
                omega = load_omega(
                    omega_ptr, offset, n, k, inside, grid_cols, block_rows, block_cols, GATES
                )
                eps, gate, _ = draw_tile(
                    seed, sample, n, first_k, k, inside, omega, gates_ptr, grid_rows, grid_cols,
                    block_rows, block_cols, inv_temperature, BK, GATES, HARD,
                )  # fmt: skip
                tau, _ = softplus(rho)
                w = (gate * tl.fma(tau, eps, kappa)).to(dy_ptr.dtype.element_ty)
            acc = tl.dot(dy, w, acc, input_precision=PRECISION)

    offset = (output.to(tl.int64) * M + m)[:, None] * K + k
    inside = inside_m & inside_k
    if SPLIT:
        tl.store(dx_ptr + split.to(tl.int64) * outputs * M * K + offset, acc, mask=inside)
    else:
        if MASKED:
            hidden = tl.load(hidden_ptr + offset, mask=inside, other=0.0)
            acc = tl.where(hidden > 0.0, acc, 0.0)
        tl.store(dx_ptr + offset, acc.to(dx_ptr.dtype.element_ty), mask=inside)


@kernel
def _finish_dx_kernel(
    dx_ptr, parts_ptr, hidden_ptr, size, splits, MASKED: tl.constexpr, CHUNK: tl.constexpr
):
    """dx = the sum of its parts [splits, size] in their order, then the ReLU's mask."""
    offset = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = offset < size
    acc = tl.zeros([CHUNK], tl.float32)
    for split in range(splits):
        part = parts_ptr + tl.cast(split, tl.int64) * size
        acc += tl.load(part + offset, mask=inside, other=0.0)
    if MASKED:
        hidden = tl.load(hidden_ptr + offset, mask=inside, other=0.0)
        acc = tl.where(hidden > 0.0, acc, 0.0)
    tl.store(dx_ptr + offset, acc.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sum_blocks(
    values, shift, BLOCK: tl.constexpr, OUT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """[BN, BK] -> [OUT, BK]: sums over runs of BLOCK rows, the first of which starts at row
    ``shift``.

    OUT = 1: all rows. OUT * BLOCK = BN: without a shift. Else OUT is at least what there is, and
    the sums are a product with the matrix of "row n is in block b", in plain float32.
    """
    if OUT == 1:
        sums = tl.sum(values, 0)[None, :]
    elif OUT * BLOCK == BN:
        sums = tl.sum(tl.reshape(values, [OUT, BLOCK, BK]), 1)
    else:
        of_row = (tl.arange(0, BN)[None, :] - shift) // BLOCK
        member = tl.where(of_row == tl.arange(0, OUT)[:, None], 1.0, 0.0)
        sums = tl.dot(member, values, input_precision="ieee")
    return sums


@kernel
def _gated_linear_bwd_params_kernel(
    dkappa_ptr, drho_ptr, domega_ptr, dy_ptr, dsums_ptr, x_ptr, kappa_ptr, rho_ptr, omega_ptr,
    gates_ptr, seed_ptr,
    kappa_avg_ptr, kappa_sq_ptr, rho_avg_ptr, rho_sq_ptr, omega_avg_ptr, omega_sq_ptr,
    samples, M, N, K, x_sample_stride, grid_rows, grid_cols, inv_temperature,
    kappa_1, kappa_2, kappa_3, kappa_4, kappa_5, kappa_6,
    rho_1, rho_2, rho_3, rho_4, rho_5, rho_6,
    omega_1, omega_2, omega_3, omega_4, omega_5, omega_6,
    GATES: tl.constexpr, HARD: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
    ROW_SPAN: tl.constexpr, COL_SPAN: tl.constexpr, ROW_PIECES: tl.constexpr,
    COL_PIECES: tl.constexpr, ROWS_OUT: tl.constexpr, COLS_OUT: tl.constexpr, ADAM: tl.constexpr,
    UPDATE_KAPPA: tl.constexpr, UPDATE_RHO: tl.constexpr, UPDATE_OMEGA: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients of kappa, rho and omega, or a step of Adam on them (see ``put_gradient``).

    Tiles are cut along blocks: ROW_SPAN rows of whole blocks to a tile, or one block to ROW_PIECES
    tiles, and so the columns. Noise comes in fours of columns, so a tile starts at a multiple of
    four, up to three columns before its first block. ``domega`` of blocks: parts [row pieces *
    column pieces, grid rows, grid cols] for ``_block_omega_kernel``.

    ``samples`` = 0: the gradient of the sums alone.
    """
    k_tiles = tl.cdiv(K, COL_SPAN) * COL_PIECES
    pid = tl.program_id(0)
    n_tile = pid // k_tiles
    k_tile = pid % k_tiles
    row_begin = (n_tile // ROW_PIECES) * ROW_SPAN
    col_begin = (k_tile // COL_PIECES) * COL_SPAN
    first_n = row_begin + (n_tile % ROW_PIECES) * BN
    first_k = col_begin // 4 * 4 + (k_tile % COL_PIECES) * BK
    n = first_n + tl.arange(0, BN)
    k = first_k + tl.arange(0, BK)
    inside_n = (n < N) & (n < row_begin + ROW_SPAN)
    inside_k = (k < K) & (k >= col_begin) & (k < col_begin + COL_SPAN)
    inside = inside_n[:, None] & inside_k[None, :]
    offset = n.to(tl.int64)[:, None] * K + k[None, :]
    rows = n[:, None]
    columns = k[None, :]

    kappa = load_float(kappa_ptr, offset, inside)
    rho = load_float(rho_ptr, offset, inside)
    omega = load_omega(
        omega_ptr, offset, rows, columns, inside, grid_cols, BLOCK_ROWS, BLOCK_COLS, GATES
    )
    tau, t = softplus(rho)

    # Of the draws: sum g dw, sum g dw eps, sum dw w (1-g).
    by_kappa = tl.zeros([BN, BK], tl.float32)
    by_tau = tl.zeros([BN, BK], tl.float32)
    by_omega = tl.zeros([BN, BK], tl.float32)
    seed = tl.load(seed_ptr)
    for sample in range(samples):
        dw = tl.zeros([BN, BK], tl.float32)
        x_rows = x_ptr + tl.cast(sample, tl.int64) * x_sample_stride
        dy_rows = dy_ptr + tl.cast(sample, tl.int64) * M * N
        for first_m in range(0, M, BM):
            m = first_m + tl.arange(0, BM)
            inside_m = (m < M)[:, None]
            m = m.to(tl.int64)[:, None]
            dy = tl.load(dy_rows + m * N + n[None, :], mask=inside_m & inside_n[None, :], other=0.0)
            x = tl.load(x_rows + m * K + columns, mask=inside_m & inside_k[None, :], other=0.0)
            dw = tl.dot(tl.trans(dy), x, dw, input_precision=PRECISION)
        eps, gate, rest = draw_tile(
            seed, sample, rows, first_k, columns, inside, omega, gates_ptr, grid_rows, grid_cols,
            BLOCK_ROWS, BLOCK_COLS, inv_temperature, BK, GATES, HARD,
        )  # fmt: skip
        gated = gate * dw
        by_kappa += gated
        by_tau = tl.fma(gated, eps, by_tau)
        by_omega = tl.fma(gated * tl.fma(tau, eps, kappa), rest, by_omega)

    c_H, c_A, c_Aw, two_c_T, c_S = load_dsums(dsums_ptr)
    alpha = tl.full([BN, BK], 1.0, tl.float32)
    slope = tl.zeros([BN, BK], tl.float32)
    if GATES != DENSE:
        alpha, rest, _ = sigmoid_pair(omega)
        slope = alpha * rest
    dkappa, drho = weight_gradients(kappa, rho, tau, t, alpha, by_kappa, by_tau, two_c_T, c_S)
    # All gradients before the first is put away: Adam's state then finds free registers.
    domega = by_omega
    if GATES != DENSE:
        cost = inclusion_cost(kappa, rho, tau, t, c_Aw, two_c_T, c_S)
        if GATES == ELEMENTWISE:
            cost = tl.fma(c_H, omega, c_A) + cost
        domega = tl.fma(slope, cost, by_omega * inv_temperature)
    put_gradient(
        dkappa_ptr, kappa_avg_ptr, kappa_sq_ptr, offset, inside, dkappa,
        kappa_1, kappa_2, kappa_3, kappa_4, kappa_5, kappa_6, ADAM, UPDATE_KAPPA,
    )  # fmt: skip
    put_gradient(
        drho_ptr, rho_avg_ptr, rho_sq_ptr, offset, inside, drho,
        rho_1, rho_2, rho_3, rho_4, rho_5, rho_6, ADAM, UPDATE_RHO,
    )  # fmt: skip
    if GATES == ELEMENTWISE:
        put_gradient(
            domega_ptr, omega_avg_ptr, omega_sq_ptr, offset, inside, domega,
            omega_1, omega_2, omega_3, omega_4, omega_5, omega_6, ADAM, UPDATE_OMEGA,
        )  # fmt: skip
    elif GATES != DENSE:
        domega = tl.trans(tl.where(inside, domega, 0.0))
        shift = col_begin - first_k
        domega = tl.trans(_sum_blocks(domega, shift, BLOCK_COLS, COLS_OUT, BK, BN))
        domega = _sum_blocks(domega, 0, BLOCK_ROWS, ROWS_OUT, BN, COLS_OUT)
        i = row_begin // BLOCK_ROWS + tl.arange(0, ROWS_OUT)[:, None]
        j = col_begin // BLOCK_COLS + tl.arange(0, COLS_OUT)[None, :]
        there = (i < (row_begin + ROW_SPAN) // BLOCK_ROWS) & (i < grid_rows)
        there = there & (j < (col_begin + COL_SPAN) // BLOCK_COLS) & (j < grid_cols)
        part = (n_tile % ROW_PIECES) * COL_PIECES + k_tile % COL_PIECES
        plane = domega_ptr + part.to(tl.int64) * grid_rows * grid_cols
        tl.store(plane + i.to(tl.int64) * grid_cols + j, domega, mask=there)
