"""Local reparametrisation: one draw an activation, from its exact mean and variance.

    m = alpha kappa,   v = alpha (tau^2 + (1-alpha) kappa^2)         (weights of mean and variance)
    mean = x m' + b,   var = (x*x) v' + tau_b^2,   y = mean + eps sqrt(var)

Both products come from one read of the parameters and of x; a second, small kernel draws. (With
the draw in its epilogue the first one spills registers at 64 rows a tile.) Samples that share x
share both products: ``rows`` of products are M then, and S * M where samples have their own x. The
moments of a weight take no noise and about half of the instructions of a draw
(``gated_linear.py``), and are made again for every tile of the batch and in the backward pass.

Squares need range: of bfloat16 inputs the variance is a bfloat16 product, of float16 ones, whose
squares overflow above 256, a TF32 product.
"""

import triton
import triton.language as tl

from .adam import put_gradient
from .compiled import kernel
from .gradients import inclusion_cost, load_dsums, weight_gradients
from .noise import ACTIVATION, normal_tile
from .posterior import DENSE, ELEMENTWISE, sigmoid_pair, softplus
from .weights import load_float, load_omega, store_partials, sum_terms

#: As in ``fastlbbnn.reference.local_linear``: a variance of zero has no finite slope.
_MIN_VARIANCE = tl.constexpr(1e-30)


@triton.jit
def _moments(kappa, tau, omega, GATES: tl.constexpr):
    """Weights of the mean and of the variance.

    The sums over an axis of one element change nothing. To the compiler they are a fence: without
    them it moves everything from the loads on into the layout of the matrix product's operand,
    where warps hold the same elements and repeat each other's work: three times the instructions.
    """
    mean = kappa
    var = tau * tau
    if GATES == ELEMENTWISE:
        alpha, rest, _ = sigmoid_pair(omega)
        mean = alpha * kappa
        var = alpha * tl.fma(rest * kappa, kappa, tau * tau)
    return tl.sum(mean[:, :, None], 2), tl.sum(var[:, :, None], 2)


@kernel
def _local_linear_fwd_kernel(
    parts_ptr, partials_ptr, x_ptr, kappa_ptr, rho_ptr, omega_ptr, rows, N, K, splits,
    GATES: tl.constexpr, PRECISION: tl.constexpr, VAR_PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """``parts``: [splits, 2, rows, N] of mean and variance; ``partials``: [n tiles, splits, 4]."""
    m_tiles = tl.cdiv(rows, BM)
    pid = tl.program_id(0)
    m_tile = pid % m_tiles
    split = (pid // m_tiles) % splits
    n_tile = pid // (m_tiles * splits)
    m = m_tile * BM + tl.arange(0, BM)[:, None]
    n = n_tile * BN + tl.arange(0, BN)
    inside_m = m < rows
    x_rows = x_ptr + m.to(tl.int64) * K
    weight_rows = n.to(tl.int64)[:, None] * K
    var_type = tl.float32 if x_ptr.dtype.element_ty == tl.float16 else x_ptr.dtype.element_ty
    H = tl.zeros([BN, BK], tl.float32)
    A = tl.zeros([BN, BK], tl.float32)
    T = tl.zeros([BN, BK], tl.float32)
    S = tl.zeros([BN, BK], tl.float32)
    mean = tl.zeros([BM, BN], tl.float32)
    var = tl.zeros([BM, BN], tl.float32)
    step = tl.cdiv(tl.cdiv(K, BK), splits) * BK
    for first_k in range(split * step, tl.minimum(K, (split + 1) * step), BK):
        k = first_k + tl.arange(0, BK)[None, :]
        x = tl.load(x_rows + k, mask=inside_m & (k < K), other=0.0)
        inside = (n < N)[:, None] & (k < K)
        offset = weight_rows + k
        kappa = load_float(kappa_ptr, offset, inside)
        rho = load_float(rho_ptr, offset, inside)
        omega = load_omega(omega_ptr, offset, n[:, None], k, inside, K, 1, 1, GATES)
        tau, t = softplus(rho)
        mean_w, var_w = _moments(kappa, tau, omega, GATES)
        if m_tile == 0:
            dH, dA, dT, dS = sum_terms(kappa, rho, tau, t, omega, inside, GATES)
            H += dH
            A += dA
            T += dT
            S += dS
        x2 = x.to(tl.float32)
        x2 = (x2 * x2).to(var_type)
        mean = tl.dot(x, tl.trans(mean_w.to(x.dtype)), mean, input_precision=PRECISION)
        var = tl.dot(x2, tl.trans(var_w.to(var_type)), var, input_precision=VAR_PRECISION)
    if m_tile == 0:
        store_partials(partials_ptr, n_tile * splits + split, H, A, T, S)

    inside = inside_m & (n < N)[None, :]
    size = tl.cast(rows, tl.int64) * N
    place = parts_ptr + split.to(tl.int64) * 2 * size + m.to(tl.int64) * N + n[None, :]
    tl.store(place, mean, mask=inside)
    tl.store(place + size, var, mask=inside)


@kernel
def _local_finish_kernel(
    y_ptr, ratio_ptr, parts_ptr, bias_kappa_ptr, bias_rho_ptr, seed_ptr, samples, rows, M, N,
    splits, HAS_BIAS: tl.constexpr, SHARED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Adds the parts of mean and variance in their order, and draws: y and eps / (2 std), [S, M,
    N].
    """
    n_tiles = tl.cdiv(N, BN)
    pid = tl.program_id(0)
    m = (pid // n_tiles) * BM + tl.arange(0, BM)[:, None]
    first_n = (pid % n_tiles) * BN
    n = first_n + tl.arange(0, BN)[None, :]
    inside = (m < rows) & (n < N)
    size = tl.cast(rows, tl.int64) * N
    offset = m.to(tl.int64) * N + n
    mean = tl.zeros([BM, BN], tl.float32)
    var = tl.zeros([BM, BN], tl.float32)
    for split in range(splits):
        part = parts_ptr + tl.cast(split, tl.int64) * 2 * size
        mean += tl.load(part + offset, mask=inside, other=0.0)
        var += tl.load(part + size + offset, mask=inside, other=0.0)
    if HAS_BIAS:
        tau, _ = softplus(load_float(bias_rho_ptr, n, n < N))
        mean += load_float(bias_kappa_ptr, n, n < N)
        var += tau * tau
    # A NaN is not below the floor, and stays one.
    flat = var < _MIN_VARIANCE
    std = tl.sqrt(tl.where(flat, _MIN_VARIANCE, var))
    seed = tl.load(seed_ptr)
    group = first_n // 4 + tl.arange(0, BN // 4)[None, :]
    repeats = samples if SHARED else 1
    for repeat in range(repeats):
        if SHARED:
            eps = normal_tile(seed, ACTIVATION, repeat, m, group)
            place = offset + tl.cast(repeat, tl.int64) * size
        else:
            eps = normal_tile(seed, ACTIVATION, m // M, m % M, group)
            place = offset
        tl.store(y_ptr + place, tl.fma(eps, std, mean).to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(ratio_ptr + place, tl.where(flat, 0.0, 0.5 * eps / std), mask=inside)


@kernel
def _local_upstream_kernel(
    dmean_ptr, dvar_ptr, dy_ptr, ratio_ptr, summed, size, CHUNK: tl.constexpr
):
    """d loss / d mean and d loss / d var of products [size], over the ``summed`` samples sharing
    them.

    dvar = dy eps / (2 std). Both in the dtype in which they are multiplied.
    """
    offset = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = offset < size
    dmean = tl.zeros([CHUNK], tl.float32)
    dvar = tl.zeros([CHUNK], tl.float32)
    for sample in range(summed):
        place = offset + tl.cast(sample, tl.int64) * size
        dy = load_float(dy_ptr, place, inside)
        dmean += dy
        dvar = tl.fma(dy, load_float(ratio_ptr, place, inside), dvar)
    tl.store(dmean_ptr + offset, dmean.to(dmean_ptr.dtype.element_ty), mask=inside)
    tl.store(dvar_ptr + offset, dvar.to(dvar_ptr.dtype.element_ty), mask=inside)


@kernel
def _local_linear_bwd_input_kernel(
    dx_ptr, dmean_ptr, dvar_ptr, x_ptr, kappa_ptr, rho_ptr, omega_ptr, rows, N, K, splits,
    GATES: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    VAR_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx = dmean m + 2 x (dvar v): [rows, K], or with SPLIT float32 parts [splits, rows, K]."""
    m_tiles = tl.cdiv(rows, BM)
    pid = tl.program_id(0)
    m_tile = pid % m_tiles
    split = (pid // m_tiles) % splits
    m = m_tile * BM + tl.arange(0, BM)[:, None]
    k = (pid // (m_tiles * splits)) * BK + tl.arange(0, BK)[None, :]
    inside_m = m < rows
    by_mean = tl.zeros([BM, BK], tl.float32)
    by_var = tl.zeros([BM, BK], tl.float32)
    step = tl.cdiv(tl.cdiv(N, BN), splits) * BN
    for first_n in range(split * step, tl.minimum(N, (split + 1) * step), BN):
        n = first_n + tl.arange(0, BN)
        columns = n[None, :]
        upstream = m.to(tl.int64) * N + columns
        dmean = tl.load(dmean_ptr + upstream, mask=inside_m & (columns < N), other=0.0)
        dvar = tl.load(dvar_ptr + upstream, mask=inside_m & (columns < N), other=0.0)
        n = n[:, None]
        inside = (n < N) & (k < K)
        offset = n.to(tl.int64) * K + k
        tau, _ = softplus(load_float(rho_ptr, offset, inside))
        omega = load_omega(omega_ptr, offset, n, k, inside, K, 1, 1, GATES)
        mean_w, var_w = _moments(load_float(kappa_ptr, offset, inside), tau, omega, GATES)
        by_mean = tl.dot(dmean, mean_w.to(dmean.dtype), by_mean, input_precision=PRECISION)
        by_var = tl.dot(dvar, var_w.to(dvar.dtype), by_var, input_precision=VAR_PRECISION)
    offset = m.to(tl.int64) * K + k
    inside = inside_m & (k < K)
    dx = tl.fma(2.0 * load_float(x_ptr, offset, inside), by_var, by_mean)
    if SPLIT:
        tl.store(dx_ptr + split.to(tl.int64) * rows * K + offset, dx, mask=inside)
    else:
        tl.store(dx_ptr + offset, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@kernel
def _local_linear_bwd_params_kernel(
    dkappa_ptr, drho_ptr, domega_ptr, dmean_ptr, dvar_ptr, dsums_ptr, x_ptr, kappa_ptr, rho_ptr,
    omega_ptr, kappa_avg_ptr, kappa_sq_ptr, rho_avg_ptr, rho_sq_ptr, omega_avg_ptr, omega_sq_ptr,
    rows, N, K,
    kappa_1, kappa_2, kappa_3, kappa_4, kappa_5, kappa_6,
    rho_1, rho_2, rho_3, rho_4, rho_5, rho_6,
    omega_1, omega_2, omega_3, omega_4, omega_5, omega_6,
    GATES: tl.constexpr, ADAM: tl.constexpr, UPDATE_KAPPA: tl.constexpr, UPDATE_RHO: tl.constexpr,
    UPDATE_OMEGA: tl.constexpr, PRECISION: tl.constexpr, VAR_PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """With dm, dv the gradients of a weight's m and v:

    d kappa = alpha (dm + 2 (1-alpha) kappa dv),   d tau = 2 alpha tau dv,
    d alpha = kappa dm + (tau^2 + (1 - 2 alpha) kappa^2) dv, and the sums' part of all.
    """
    k_tiles = tl.cdiv(K, BK)
    pid = tl.program_id(0)
    n = (pid // k_tiles) * BN + tl.arange(0, BN)
    k = (pid % k_tiles) * BK + tl.arange(0, BK)[None, :]
    columns = n[None, :]
    dm = tl.zeros([BN, BK], tl.float32)
    dv = tl.zeros([BN, BK], tl.float32)
    for first_m in range(0, rows, BM):
        m = first_m + tl.arange(0, BM)[:, None]
        upstream = m.to(tl.int64) * N + columns
        dmean = tl.load(dmean_ptr + upstream, mask=(m < rows) & (columns < N), other=0.0)
        dvar = tl.load(dvar_ptr + upstream, mask=(m < rows) & (columns < N), other=0.0)
        x = tl.load(x_ptr + m.to(tl.int64) * K + k, mask=(m < rows) & (k < K), other=0.0)
        x2 = x.to(tl.float32)
        x2 = (x2 * x2).to(dvar.dtype)
        dm = tl.dot(tl.trans(dmean), x, dm, input_precision=PRECISION)
        dv = tl.dot(tl.trans(dvar), x2, dv, input_precision=VAR_PRECISION)

    n = n[:, None]
    inside = (n < N) & (k < K)
    offset = n.to(tl.int64) * K + k
    kappa = load_float(kappa_ptr, offset, inside)
    rho = load_float(rho_ptr, offset, inside)
    omega = load_omega(omega_ptr, offset, n, k, inside, K, 1, 1, GATES)
    tau, t = softplus(rho)
    c_H, c_A, c_Aw, two_c_T, c_S = load_dsums(dsums_ptr)
    alpha = tl.full([BN, BK], 1.0, tl.float32)
    by_kappa = dm
    by_tau = 2.0 * tau * dv
    if GATES != DENSE:
        alpha, rest, _ = sigmoid_pair(omega)
        by_kappa = alpha * tl.fma(2.0 * rest * kappa, dv, dm)
        by_tau = alpha * by_tau
    dkappa, drho = weight_gradients(kappa, rho, tau, t, alpha, by_kappa, by_tau, two_c_T, c_S)
    # All gradients before the first is put away: Adam's state then finds free registers.
    domega = dm
    if GATES != DENSE:
        cost = inclusion_cost(kappa, rho, tau, t, c_Aw, two_c_T, c_S)
        spread = tl.fma((rest - alpha) * kappa, kappa, tau * tau)
        dalpha = tl.fma(kappa, dm, spread * dv)
        domega = alpha * rest * (tl.fma(c_H, omega, c_A) + cost + dalpha)
    put_gradient(
        dkappa_ptr, kappa_avg_ptr, kappa_sq_ptr, offset, inside, dkappa,
        kappa_1, kappa_2, kappa_3, kappa_4, kappa_5, kappa_6, ADAM, UPDATE_KAPPA,
    )  # fmt: skip
    put_gradient(
        drho_ptr, rho_avg_ptr, rho_sq_ptr, offset, inside, drho,
        rho_1, rho_2, rho_3, rho_4, rho_5, rho_6, ADAM, UPDATE_RHO,
    )  # fmt: skip
    if GATES != DENSE:
        put_gradient(
            domega_ptr, omega_avg_ptr, omega_sq_ptr, offset, inside, domega,
            omega_1, omega_2, omega_3, omega_4, omega_5, omega_6, ADAM, UPDATE_OMEGA,
        )  # fmt: skip
