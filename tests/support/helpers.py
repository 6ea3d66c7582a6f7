"""What the tests share: parameters of a layer, and the rule by which a backend agrees."""

from __future__ import annotations

import torch
from torch import Tensor

from fastlbbnn import reference

#: Relative rounding error of float32.
EPS32 = 2.0**-24


def make_parameters(
    rows: int,
    cols: int,
    *,
    block: tuple[int, int] = (1, 1),
    gated: bool = True,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
) -> list[Tensor | None]:
    """kappa, rho, omega, bias_kappa, bias_rho with values where posteriors are; the same in any dtype."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float, shift: float) -> Tensor:
        return (torch.randn(*shape, generator=g) * scale + shift).to(dtype).requires_grad_()

    grid = reference.grid_shape(rows, cols, block)
    return [
        normal(rows, cols, scale=0.3, shift=0.0),
        normal(rows, cols, scale=1.5, shift=-3.0),
        normal(*grid, scale=2.0, shift=0.0) if gated else None,
        normal(rows, scale=1.0, shift=0.0) if bias else None,
        normal(rows, scale=1.0, shift=-2.0) if bias else None,
    ]


def relative_error(got: Tensor, exact: Tensor) -> float:
    """||got - exact|| / ||exact||, in float64; absolute where exact is zero."""
    if exact.numel() == 0:
        return 0.0
    exact = exact.detach().double()
    scale = exact.norm().item()
    return (got.detach().double() - exact).norm().item() / (scale or 1.0)


def assert_agrees(name: str, got: Tensor, plain: Tensor, exact: Tensor, extra: float = 0.0) -> None:
    """A backend's error is at most twice that of plain PyTorch in the same precision.

    Both are measured against float64. ``4 * EPS32`` is added because plain PyTorch can be exact by
    luck on a handful of elements, and a fused kernel rounds a few more intermediate results than
    appear in the formula; ``extra`` is for tests that derive a larger conditioning error themselves.
    """
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}"
    assert torch.isfinite(got).all(), f"{name}: not finite"
    error, allowed = relative_error(got, exact), 2.0 * relative_error(plain, exact) + 4.0 * EPS32 + extra
    assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"
