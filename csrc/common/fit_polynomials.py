"""Fits the polynomials of `vecmath.h` and `noise.h` and prints them with their errors.

    python csrc/common/fit_polynomials.py

Each fit is a weighted least-squares fit on Chebyshev points (close to minimax), rounded to float32
coefficient by coefficient from the lowest degree up, the rest refitted after every rounding. The
printed error is that of the rounded polynomial in exact arithmetic; the rounding of the evaluation
comes on top, and is what `tests/cpu/test_vecmath.py` measures.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]


def fit(
    f: Function, weight: Function, degree: int, lo: float, hi: float
) -> tuple[list[float], float]:
    """Float32 coefficients c of sum_i c_i x^i ~ f on [lo, hi], and max |weight * (f - fit)|."""
    angles = (np.arange(6000) + 0.5) * np.pi / 6000
    x = (lo + hi) / 2 + (hi - lo) / 2 * np.cos(angles)
    # Lawson's iteration: reweighting least squares by its own error tends to the minimax fit.
    lawson = np.ones_like(x)
    fixed: list[float] = []
    for power in range(degree + 1):
        known = np.polynomial.polynomial.polyval(x, fixed) if fixed else 0.0
        for _ in range(30):
            scale = weight(x) * np.sqrt(lawson)
            columns = np.column_stack([x**i for i in range(power, degree + 1)])
            free = np.linalg.lstsq(columns * scale[:, None], (f(x) - known) * scale, rcond=None)[0]
            error = np.abs(weight(x) * (f(x) - known - columns @ free))
            lawson *= np.maximum(error, 1e-3 * error.max())
            lawson /= lawson.mean()
        fixed.append(float(np.float32(free[0])))
    grid = np.linspace(lo, hi, 100_003)
    grid = grid[grid != 0]
    value = np.polynomial.polynomial.polyval(grid, fixed)
    return fixed, float(np.max(np.abs(weight(grid) * (f(grid) - value))))


def one(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def log1p_over(t: np.ndarray) -> np.ndarray:
    return np.log1p(t) / t


def log1p_tail(x: np.ndarray) -> np.ndarray:
    return (np.log1p(x) - x) / x**2


def main() -> None:
    half_ln2 = np.log(2.0) / 2
    small = np.exp(-2.0)
    mantissa = np.sqrt(0.5) - 1, np.sqrt(2.0) - 1

    fits = {
        "exp(r) = 1 + r + r^2 P(r)": (
            lambda r: (np.expm1(r) - r) / r**2, lambda r: r**2 / np.exp(r), 4, -half_ln2, half_ln2
        ),
        "log1p(t) = t P(t), 0 <= t <= 1": (
            log1p_over, lambda t: 1 / log1p_over(t), 8, 0.0, 1.0
        ),
        "log1p(t) = t P(t), 0 <= t <= e^-2": (log1p_over, one, 4, 0.0, small),
        "log(log1p(t)/t) = t Q(t), 0 <= t <= e^-2": (
            lambda t: np.log(log1p_over(t)) / t, lambda t: t, 3, 0.0, small
        ),
        "t/(1+t)/log1p(t) = R(t), 0 <= t <= e^-2": (
            lambda t: 1 / ((1 + t) * log1p_over(t)), one, 4, 0.0, small
        ),
        "log(1+x) = x + x^2 P(x), sqrt(1/2) <= 1+x <= sqrt(2)": (
            log1p_tail, lambda x: x**2 / np.abs(np.log1p(x)), 7, *mantissa
        ),
        "noise: log(1+x) = x + x^2 P(x)": (
            log1p_tail, lambda x: x**2 / np.abs(np.log1p(x)), 5, *mantissa
        ),
        "noise: sin(pi/2 s) = s P(s^2), |s| <= 1/2": (
            lambda v: np.sin(np.pi / 2 * np.sqrt(v)) / np.sqrt(v), one, 2, 0.0, 0.25
        ),
        "noise: cos(pi/2 s) = P(s^2), |s| <= 1/2": (
            lambda v: np.cos(np.pi / 2 * np.sqrt(v)), one, 3, 0.0, 0.25
        ),
    }
    for name, arguments in fits.items():
        coefficients, error = fit(*arguments)
        print(f"{name}   (error {error:.1e})")
        for i, c in enumerate(coefficients):
            print(f"    c{i} = {c.hex()}f  // {c:.9g}")


if __name__ == "__main__":
    main()
