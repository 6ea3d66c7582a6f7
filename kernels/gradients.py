"""From what the data ask of a weight to the gradients of its parameters, the sums' part included.
"""

import triton
import triton.language as tl

from .posterior import log_tau, sigmoid_over_tau


@triton.jit
def load_dsums(dsums_ptr):
    """c_H, c_A, c_Aw, 2 c_T, c_S."""
    c_H = tl.load(dsums_ptr).to(tl.float32)
    c_A = tl.load(dsums_ptr + 1).to(tl.float32)
    c_Aw = tl.load(dsums_ptr + 2).to(tl.float32)
    two_c_T = 2.0 * tl.load(dsums_ptr + 3).to(tl.float32)
    c_S = tl.load(dsums_ptr + 4).to(tl.float32)
    return c_H, c_A, c_Aw, two_c_T, c_S


@triton.jit
def weight_gradients(kappa, rho, tau, t, alpha, by_kappa, by_tau, two_c_T, c_S):
    """d kappa = by_kappa + 2 c_S alpha kappa

    d rho = sigmoid(rho) (by_tau + 2 c_S alpha tau + 2 c_T alpha / tau)
    """
    pull = 2.0 * c_S * alpha
    dkappa = tl.fma(pull, kappa, by_kappa)
    # sigmoid(rho) = tau * (sigmoid(rho) / tau) is taken out: nothing is divided by a tau that
    # vanishes.
    through_tau = tl.fma(tau, tl.fma(pull, tau, by_tau), two_c_T * alpha)
    return dkappa, sigmoid_over_tau(rho, tau, t) * through_tau


@triton.jit
def inclusion_cost(kappa, rho, tau, t, c_Aw, two_c_T, c_S):
    """c_Aw + c_T log tau^2 + c_S (kappa^2 + tau^2): what the sums ask of a weight's alpha."""
    square = tl.fma(kappa, kappa, tau * tau)
    return tl.fma(two_c_T, log_tau(rho, tau, t), tl.fma(c_S, square, c_Aw))
