"""How the interpreted kernels are compared with the reference."""

from __future__ import annotations

import torch
from fastlbbnn.kernels.configs import TABLES, Choice, Tile, pin
from support.helpers import EPS32, assert_agrees, relative_error

from fastlbbnn import ops, reference

SEED = torch.tensor(-987654321987)
NAMES = ("kappa", "rho", "omega", "bias_kappa", "bias_rho")
#: An upstream gradient of the five sums with every entry at work.
DSUMS = torch.tensor([1.0, 0.3, 0.2, -0.5, 0.7])
#: The interpreter is slow with small tiles.
LARGE = Tile(64, 64, 64, 4, 1)


def pinned(tile: Tile = LARGE, splits: int = 1, staged: bool = False):
    """All kernels with this tile."""
    names = [name for name in TABLES["sm80"] if not name.endswith("_odd")]
    return pin(**{name: Choice(tile, splits, staged) for name in names})


def embedded(t):
    """The same values in the middle of a buffer of NaN: a load out of bounds shows."""
    if t is None:
        return None
    buffer = torch.full((t.numel() + 512,), float("nan"), dtype=t.dtype)
    inner = buffer[256 : 256 + t.numel()].view(t.shape)
    return inner.copy_(t.detach())


def run(function, x, parameters, dtype, parameter_dtype=None, **kwargs):
    """Outputs, sums and gradients of <y, dy> + <sums, dsums>, for inputs cast to dtype.

    ``parameter_dtype``: of the parameters, where it is another. dy has the numbers of x's own dtype.
    """
    parameter_dtype = parameter_dtype or dtype
    # Upstream gradients that x's own dtype can hold, whatever it is cast to.
    given_dtype = x.dtype
    x = embedded(x.to(dtype)).requires_grad_()
    given = [
        None if p is None else embedded(p.detach().to(parameter_dtype)).requires_grad_()
        for p in parameters
    ]
    y, sums = function(x, *given, **kwargs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(given_dtype).to(dtype)
    present = [p for p in given if p is not None]
    grads = torch.autograd.grad(
        [y, sums], [x, *present], [dy, DSUMS.to(sums.dtype)], allow_unused=True
    )
    names = ["y", "sums", "dx", *(f"d{n}" for n, p in zip(NAMES, given) if p is not None)]
    values = [y, sums, *(torch.zeros(()) if g is None else g for g in grads)]
    return dict(zip(names, (v.detach() for v in values)))


def compare(op, x, parameters, **kwargs):
    """float32: at most twice the error of plain PyTorch, both against float64."""
    fused = run(getattr(ops, op), x, parameters, torch.float32, backend="triton", **kwargs)
    plain = run(getattr(reference, op), x, parameters, torch.float32, **kwargs)
    exact = run(getattr(reference, op), x, parameters, torch.float64, **kwargs)
    for name in exact:
        assert_agrees(name, fused[name], plain[name], exact[name])


def compare_half(op, x, parameters, dtype=torch.float16, **kwargs):
    """Half-precision inputs and parameters, float32 inside, against float64 at the same values.

    Rounded to the dtype are the operands of the products (weights, or moments; float16's squares and
    their weights stay float32) and the results: for products of independent terms the errors of two
    roundings, each at most half a unit relative, add up to less than one unit of the result's norm;
    the sums are not rounded. A third is for the upstream of local gradients, dvar and dmean, and
    for dx, whose products round both operands.
    """
    half = [None if p is None else p.detach().to(dtype) for p in parameters]
    x, rounding = x.to(dtype), torch.finfo(dtype).eps / 2
    fused = run(getattr(ops, op), x, half, dtype, backend="triton", **kwargs)
    exact = run(getattr(reference, op), x, half, torch.float64, **kwargs)
    for name in exact:
        assert torch.isfinite(fused[name]).all(), name
        assert fused[name].dtype == (torch.float32 if name == "sums" else dtype), name
        error = relative_error(fused[name], exact[name])
        allowed = 8.0 * EPS32 if name == "sums" else 3.0 * rounding
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def compare_mixed(op, x, parameters, dtype, **kwargs):
    """Half-precision inputs, float32 parameters: outputs like ``compare_half``'s.

    Parameter gradients are float32. Those of gated_linear are sums over products of given numbers, so
    that plain float32 is their measure; those of local_linear see dmean and dvar rounded, and x^2.
    """
    x, rounding = x.to(dtype), torch.finfo(dtype).eps / 2
    single = torch.float32
    fused = run(getattr(ops, op), x, parameters, dtype, single, backend="triton", **kwargs)
    plain = run(getattr(reference, op), x, parameters, single, **kwargs)
    exact = run(getattr(reference, op), x, parameters, torch.float64, **kwargs)
    for name in exact:
        inputs = name in ("y", "dx")
        assert fused[name].dtype == (dtype if inputs else single), name
        if inputs or (op == "local_linear" and name != "sums"):
            error = relative_error(fused[name], exact[name])
            assert error <= 3.0 * rounding, f"{name}: error {error:.2e}, allowed {3 * rounding:.2e}"
        else:
            assert_agrees(name, fused[name], plain[name], exact[name])


def make_x(batch, cols, samples=1, per_sample=False):
    g = torch.Generator().manual_seed(5)
    return torch.randn(*((samples,) if per_sample else ()), batch, cols, generator=g)
