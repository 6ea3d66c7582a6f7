"""How the interpreted kernels are compared with the reference."""

from __future__ import annotations

import torch
from fastlbbnn.kernels.configs import TABLES, Choice, Tile, pin
from helpers import EPS32, assert_agrees, relative_error

from fastlbbnn import functional, reference

SEED = torch.tensor(-987654321987)
NAMES = ("kappa", "rho", "omega", "bias_kappa", "bias_rho")
#: An upstream gradient of the five sums with every entry at work.
DSUMS = torch.tensor([1.0, 0.3, 0.2, -0.5, 0.7])
#: The interpreter is slow with small tiles.
LARGE = Tile(64, 64, 64, 4, 1)
#: Relative rounding error of float16.
EPS16 = 2.0**-11


def pinned(tile: Tile = LARGE, splits: int = 1, staged: bool = False):
    """All kernels with this tile."""
    return pin(**{name: Choice(tile, splits, staged) for name in TABLES["sm80"]})


def embedded(t):
    """The same values in the middle of a buffer of NaN: a load out of bounds shows."""
    if t is None:
        return None
    buffer = torch.full((t.numel() + 512,), float("nan"), dtype=t.dtype)
    inner = buffer[256 : 256 + t.numel()].view(t.shape)
    return inner.copy_(t.detach())


def run(function, x, parameters, dtype, **kwargs):
    """Outputs, sums and gradients of <y, dy> + <sums, dsums>, for inputs cast to dtype."""
    x = embedded(x.to(dtype)).requires_grad_()
    given = [
        None if p is None else embedded(p.detach().to(dtype)).requires_grad_() for p in parameters
    ]
    y, sums = function(x, *given, **kwargs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    present = [p for p in given if p is not None]
    grads = torch.autograd.grad(
        [y, sums], [x, *present], [dy, DSUMS.to(sums.dtype)], allow_unused=True
    )
    names = ["y", "sums", "dx", *(f"d{n}" for n, p in zip(NAMES, given) if p is not None)]
    values = [y, sums, *(torch.zeros(()) if g is None else g for g in grads)]
    return dict(zip(names, (v.detach() for v in values)))


def compare(op, x, parameters, **kwargs):
    """float32: at most twice the error of plain PyTorch, both against float64."""
    fused = run(getattr(functional, op), x, parameters, torch.float32, backend="triton", **kwargs)
    plain = run(getattr(reference, op), x, parameters, torch.float32, **kwargs)
    exact = run(getattr(reference, op), x, parameters, torch.float64, **kwargs)
    for name in exact:
        assert_agrees(name, fused[name], plain[name], exact[name])


def compare_half(op, x, parameters, **kwargs):
    """float16 inputs and parameters, float32 inside, against float64 at the same float16 values.

    Rounded to float16 are the operands of the products (weights, or moments; squares and their
    weights stay float32) and the results: for products of independent terms the errors of two
    roundings, each at most EPS16 relative, add up to less than 2 EPS16 of the result's norm; the
    sums are not rounded. A third EPS16 is for the upstream of local gradients, dvar and dmean, and
    for dx, whose products round both operands.
    """
    half = [None if p is None else p.detach().half() for p in parameters]
    fused = run(getattr(functional, op), x.half(), half, torch.float16, backend="triton", **kwargs)
    exact = run(getattr(reference, op), x.half(), half, torch.float64, **kwargs)
    for name in exact:
        assert torch.isfinite(fused[name]).all(), name
        assert fused[name].dtype == (torch.float32 if name == "sums" else torch.float16), name
        error = relative_error(fused[name], exact[name])
        allowed = 8.0 * EPS32 if name == "sums" else 3.0 * EPS16
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def make_x(batch, cols, samples=1, per_sample=False):
    g = torch.Generator().manual_seed(5)
    return torch.randn(*((samples,) if per_sample else ()), batch, cols, generator=g)
