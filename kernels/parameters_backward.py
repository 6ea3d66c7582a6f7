"""Gradients that need no matrix product of their own: biases, and the logits of blocks."""

import triton.language as tl

from .adam import put_gradient
from .compiled import kernel
from .gradients import load_dsums, weight_gradients
from .noise import BIAS, normal_at
from .posterior import sigmoid_pair, softplus
from .weights import load_float


@kernel
def _bias_bwd_kernel(
    dkappa_ptr, drho_ptr, by_mean_ptr, by_var_ptr, dsums_ptr, kappa_ptr, rho_ptr, seed_ptr,
    kappa_avg_ptr, kappa_sq_ptr, rho_avg_ptr, rho_sq_ptr, samples, N,
    kappa_1, kappa_2, kappa_3, kappa_4, kappa_5, kappa_6,
    rho_1, rho_2, rho_3, rho_4, rho_5, rho_6,
    LOCAL: tl.constexpr, ADAM: tl.constexpr, UPDATE_KAPPA: tl.constexpr, UPDATE_RHO: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of biases from ``by_mean`` [S, N], the columns' sums of dy.

    A sampled bias is kappa + tau eps: d tau = sum_s by_mean eps. With LOCAL it is a part of the
    activation's mean and variance, S = 1, and d tau = 2 tau ``by_var``.
    """
    n = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    inside = n < N
    kappa = load_float(kappa_ptr, n, inside)
    rho = load_float(rho_ptr, n, inside)
    tau, t = softplus(rho)
    by_kappa = tl.zeros([CHUNK], tl.float32)
    by_tau = tl.zeros([CHUNK], tl.float32)
    if LOCAL:
        by_kappa = load_float(by_mean_ptr, n, inside)
        by_tau = 2.0 * tau * load_float(by_var_ptr, n, inside)
    else:
        seed = tl.load(seed_ptr)
        for sample in range(samples):
            db = load_float(by_mean_ptr, tl.cast(sample, tl.int64) * N + n, inside)
            by_kappa += db
            by_tau = tl.fma(db, normal_at(seed, BIAS, sample, 0, n), by_tau)
    _, _, _, two_c_T, c_S = load_dsums(dsums_ptr)
    dkappa, drho = weight_gradients(kappa, rho, tau, t, 1.0, by_kappa, by_tau, two_c_T, c_S)
    put_gradient(
        dkappa_ptr, kappa_avg_ptr, kappa_sq_ptr, n, inside, dkappa,
        kappa_1, kappa_2, kappa_3, kappa_4, kappa_5, kappa_6, ADAM, UPDATE_KAPPA,
    )  # fmt: skip
    put_gradient(
        drho_ptr, rho_avg_ptr, rho_sq_ptr, n, inside, drho,
        rho_1, rho_2, rho_3, rho_4, rho_5, rho_6, ADAM, UPDATE_RHO,
    )  # fmt: skip


@kernel
def _block_omega_kernel(
    domega_ptr, parts_ptr, dsums_ptr, omega_ptr, omega_avg_ptr, omega_sq_ptr, parts, size,
    omega_1, omega_2, omega_3, omega_4, omega_5, omega_6,
    ADAM: tl.constexpr, UPDATE_OMEGA: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of the logits of blocks: their parts [parts, size] in order, and

    alpha (1-alpha) (c_H omega + c_A), which a block has once.
    """
    offset = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = offset < size
    omega = load_float(omega_ptr, offset, inside)
    alpha, rest, _ = sigmoid_pair(omega)
    c_H, c_A, _, _, _ = load_dsums(dsums_ptr)
    domega = alpha * rest * tl.fma(c_H, omega, c_A)
    for part in range(parts):
        domega += load_float(parts_ptr + tl.cast(part, tl.int64) * size, offset, inside)
    put_gradient(
        domega_ptr, omega_avg_ptr, omega_sq_ptr, offset, inside, domega,
        omega_1, omega_2, omega_3, omega_4, omega_5, omega_6, ADAM, UPDATE_OMEGA,
    )  # fmt: skip
