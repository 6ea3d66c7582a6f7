"""Elementary functions of the posterior, float32, finite at any finite parameters.

Kernels are compiled without fusion of multiplications and additions (see ``noise.py``), so the
polynomials here ask for it by name. The coefficients are those of ``csrc/common/vecmath.h``.
Comparisons are written so that a NaN parameter comes out as NaN.
"""

import triton
import triton.language as tl

#: Kinds of indicators.
DENSE = tl.constexpr(0)  # none: Gaussian weights
ELEMENTWISE = tl.constexpr(1)  # one a weight
BLOCKS = tl.constexpr(2)  # one a block


@triton.jit
def exp_nonpositive(x):
    """exp(x) for x <= 0, with the relative error of the argument's reduction kept out of it.

    x = n log(2) + r; the fast exp(x) = 2^(x log2(e)) alone is off by |x| 2^-24, ten times the
    rounding of a posterior scale.
    """
    x = tl.where(x < -100.0, -100.0, x)
    n = tl.floor(tl.fma(x, 1.4426950408889634, 0.5))
    r = tl.fma(n, -0.693359375, x)  # log(2) in ten bits: the product is exact
    r = tl.fma(n, 0.00021219444, r)
    return tl.exp2(n) * tl.exp2(r * 1.4426950408889634)


@triton.jit
def log1p_unit(t):
    """log(1 + t) for 0 <= t <= 1."""
    p = tl.fma(t, 0.003882630495354533, -0.02424241602420807)  # 0x1.fce776p-9, -0x1.8d3010p-6
    p = tl.fma(p, t, 0.06991973519325256)  # 0x1.1e6428p-4
    p = tl.fma(p, t, -0.1298336237668991)  # -0x1.09e636p-3
    p = tl.fma(p, t, 0.18799196183681488)  # 0x1.8101eep-3
    p = tl.fma(p, t, -0.24768228828907013)  # -0x1.fb40dap-3
    p = tl.fma(p, t, 0.33310213685035706)  # 0x1.5518bap-2
    p = tl.fma(p, t, -0.49999094009399414)  # -0x1.fffda0p-2
    return tl.fma(p, t, 0.9999999403953552) * t  # 0x1.fffffep-1


@triton.jit
def softplus(rho):
    """tau = log(1 + exp(rho)), and exp(-|rho|)."""
    t = exp_nonpositive(-tl.abs(rho))
    return tl.where(rho > 0.0, rho, 0.0) + log1p_unit(t), t


# Below this, log(tau) and its slope are their own short series in t = exp(rho) < 1.3e-4: tau
# underflows where they do not.
_SMALL_RHO = tl.constexpr(-9.0)


@triton.jit
def log_tau(rho, tau, t):
    """log(softplus(rho)); rho - t/2 where tau is small (the next term is below 4e-9)."""
    small = rho < _SMALL_RHO
    return tl.where(small, tl.fma(t, -0.5, rho), tl.log(tl.where(small, 1.0, tau)))


@triton.jit
def sigmoid_over_tau(rho, tau, t):
    """(d tau / d rho) / tau = d log(tau) / d rho; 1 - t/2 where tau is small."""
    small = rho < _SMALL_RHO
    sigmoid = tl.where(rho < 0.0, t, 1.0) / (1.0 + t)
    return tl.where(small, tl.fma(t, -0.5, 1.0), sigmoid / tl.where(small, 1.0, tau))


@triton.jit
def sigmoid_pair(z):
    """sigmoid(z) and 1 - sigmoid(z), neither by cancellation, and exp(-|z|)."""
    e = exp_nonpositive(-tl.abs(z))
    larger = 1.0 / (1.0 + e)
    smaller = e * larger
    below = z < 0.0
    return tl.where(below, smaller, larger), tl.where(below, larger, smaller), e


@triton.jit
def negative_entropy(omega, alpha, rest, e):
    """alpha log(alpha) + (1-alpha) log(1-alpha) = -(log1p(e) + |omega| min(alpha, 1-alpha))."""
    return -tl.fma(tl.abs(omega), tl.minimum(alpha, rest), log1p_unit(e))


@triton.jit
def gate_pair(omega, noise, inv_temperature, HARD: tl.constexpr):
    """The gate and one minus it: relaxed, sigmoid((omega - logit u) / delta), or 1[omega > logit
    u].
    """
    if HARD:
        gate = tl.where(omega > noise, 1.0, 0.0)
        # A NaN logit compares as false: let it through.
        gate = tl.where(omega == omega, gate, omega)
        rest = 1.0 - gate
    else:
        gate, rest, _ = sigmoid_pair((omega - noise) * inv_temperature)
    return gate, rest
