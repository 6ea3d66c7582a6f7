"""What a backend keeps to: run ``check_backend`` over one of your own.

    BACKENDS.register("mine", Mine())
    check_backend("mine")

Every check raises AssertionError with a sentence. What computes is compared with the reference by the rule of
the house: its error is at most twice that of plain PyTorch in the same precision, both against float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops, reference
from ..ops.backends import BACKENDS, Backend
from ..ops.dispatch import call
from ..ops.local_mlp import LOCAL_MLP
from ..ops.parameters import LayerParameters
from ..reference.mixture_linear import ScaleMixture
from ..reference.noise import Stream

#: What a backend may have functions for.
OPERATORS = ("fixed_mlp", "gated_linear", "gated_mlp", "local_linear", "local_mlp", "kl_sums", "mixture_linear")
_MIXTURE = ScaleMixture(0.5, 1.0, math.exp(-6.0))
#: Relative rounding error of float32.
_EPS32 = 2.0**-24


class Case(NamedTuple):
    """A call of an operator: ``function(module, x, parameters, seed)`` gives outputs and sums."""

    operator: str
    what: str
    x: Tensor
    parameters: list[Tensor | None]
    function: Callable[..., tuple[Tensor, Tensor]]


def check_backend(name: str, *, device: str = "cpu") -> None:
    """All checks, of the registered backend ``name`` on one device; a RuntimeError where it cannot run here."""
    assert name in BACKENDS, f"{name!r} is not among BACKENDS: BACKENDS.register({name!r}, ...) gives it a name"
    backend = BACKENDS[name]
    assert isinstance(backend, Backend), f"the backend {name!r} is not a fastlbbnn.ops.backends.Backend"
    check_description(backend, name)
    reason = backend.unavailable() or backend.refuses(device, torch.float32)
    if reason is not None:
        raise RuntimeError(f"the backend {name!r} cannot be checked on {device}: {reason}")
    check_noise(backend, name, device)
    for case in cases(device):
        check_agreement(name, case)
        check_repeats(name, case)
    check_empty_batches(name, device)
    check_numbers_that_are_not_finite(backend, name, device)


def check_description(backend: Backend, name: str) -> None:
    assert backend.name == name, f"the backend {name!r} calls itself {backend.name!r}"
    assert isinstance(backend.describes, str) and backend.describes, f"{name}.describes is not a sentence"
    unknown = sorted({*backend.functions, *backend.fused} - set(OPERATORS))
    assert not unknown, f"{name} has a function for {unknown[0]!r}; expected some of {', '.join(OPERATORS)}"
    for what, found in (
        ("unavailable()", backend.unavailable()),
        ("refuses('cpu', torch.float32)", backend.refuses("cpu", torch.float32)),
        ("refuses('cpu', torch.int64)", backend.refuses("cpu", torch.int64)),
    ):
        assert found is None or (isinstance(found, str) and found), (
            f"{name}.{what} is {found!r}; expected None, or why not"
        )
    assert backend.refuses("cpu", torch.int64), f"{name} does not refuse parameters of int64"


def check_noise(backend: Backend, name: str, device: str) -> None:
    """Noise is a function of seed, stream and index: the reference's, normals to rounding."""
    for seed in (0, -987654321987, 2**62):
        s = torch.tensor(seed, device=device)
        for stream in (Stream.WEIGHT, Stream.BIAS, Stream.ACTIVATION):
            found, expected = backend.normals(s, stream, 3, 41), reference.normals(s, stream, 0, 3, 41)
            assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5), (
                f"{name}.normals gives other noise than the reference, for seed {seed} and {stream.name}"
            )
        found, expected = backend.logistics(s, 3, 41), reference.gate_logistics(s, 0, 3, 41)
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5), (
            f"{name}.logistics gives other noise than the reference, for seed {seed}"
        )


def cases(device: str = "cpu") -> Iterator[Case]:
    """Calls of every operator, of odd and degenerate shapes."""
    for i, (batch, rows, cols) in enumerate(((1, 1, 1), (3, 1, 3), (9, 41, 41), (5, 3, 401), (5, 401, 3))):
        for gated in (True, False):
            x, p = _normal(batch, cols, seed=i, device=device), _parameters(rows, cols, gated, device=device)
            what = f"{batch} rows by {rows} x {cols}{'' if gated else ', no gates'}"
            yield Case("gated_linear", what, x, p, _gated())
            yield Case("gated_linear", f"{what}, hard", x, p, _gated(hard=True))
            yield Case("local_linear", what, x, p, lambda m, x, p, s, **k: m.local_linear(x, *p, seed=s, **k))
            yield Case("kl_sums", what, x, p, lambda m, x, p, s, **k: (x, m.kl_sums(*p, **k)))
        dense = _parameters(rows, cols, False, device=device)
        yield Case(
            "mixture_linear", f"{batch} rows by {rows} x {cols}", x, dense,
            lambda m, x, p, s, **k: m.mixture_linear(x, *p[:2], *p[3:], _MIXTURE, seed=s, **k),
        )
    x = _normal(5, 41, seed=7, device=device)
    for block in ((2, 3), (16, 16), (100, 1)):
        p = _parameters(23, 41, True, block, device)
        yield Case("gated_linear", f"blocks {block}", x, p, _gated(block=block))
        yield Case("gated_linear", f"blocks {block}, 3 draws, hard", x, p, _gated(block=block, samples=3, hard=True))
        yield Case(
            "kl_sums", f"blocks {block}", x, p, lambda m, x, p, s, b=block, **k: (x, m.kl_sums(*p, block=b, **k))
        )
    p = _parameters(23, 41, True, device=device)
    three = _normal(3, 5, 41, seed=8, device=device)
    yield Case("gated_linear", "3 draws", x, p, _gated(samples=3))
    yield Case("gated_linear", "3 draws with rows of their own", three, p, _gated(samples=3))
    yield Case(
        "local_linear", "3 draws with rows of their own", three, p,
        lambda m, x, p, s, **k: m.local_linear(x, *p, seed=s, samples=3, **k),
    )
    yield Case("gated_linear", "no biases", x, [*p[:3], None, None], _gated())
    second = _parameters(4, 23, False, device=device)
    for hard in (False, True):
        yield Case(
            "gated_mlp", "two layers, 2 draws", x, [*p, *second],
            lambda m, x, p, s, hard=hard, **k: m.gated_mlp(
                x, [p[:5], p[5:]], seeds=torch.stack((s, s + 1)), samples=2, blocks=[(1, 1)] * 2,
                temperatures=[0.5] * 2, hard=hard, **k,
            ),
        )  # fmt: skip
    yield Case("local_mlp", "two layers, 2 draws", x, [*p, *second], _local_mlp)
    yield from _fixed_cases(x, device)


def _fixed_cases(x: Tensor, device: str) -> Iterator[Case]:
    """Two layers with some of their weights, one of them a row without any."""
    masks = [_normal(rows, cols, seed=11, device=device) > 0.7 for rows, cols in ((23, 41), (4, 23))]
    masks[0][3] = False
    supports = [reference.Support.of_mask(mask) for mask in masks]
    kept: list[Tensor | None] = []
    for support in supports:
        weights = [_normal(support.weights, seed=i, scale=0.5, device=device) for i in (12, 13, 14)]
        biases = [_normal(support.rows, seed=i, device=device) for i in (15, 16)]
        kept += [*weights, *biases]
    for estimator in ("local", "means"):
        yield Case(
            "fixed_mlp", f"two layers, {estimator}", x, kept,
            lambda m, x, p, s, estimator=estimator, **k: m.fixed_mlp(
                x, [LayerParameters(*p[:5]), LayerParameters(*p[5:])], supports, seeds=torch.stack((s, s + 1)),
                estimator=estimator, **k,
            ),
        )  # fmt: skip


def _local_mlp(module: Any, x: Tensor, p: list[Tensor | None], seed: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    layers, seeds = [LayerParameters(*p[:5]), LayerParameters(*p[5:])], torch.stack((seed, seed + 1))  # type: ignore[arg-type]
    if module is reference:
        return LOCAL_MLP.reference(x, layers, seeds, 2)
    return call(LOCAL_MLP, x, layers, seeds, 2, **how)


def _gated(**settings: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    settings = {"temperature": 0.5, **settings}
    return lambda module, x, p, seed, **how: module.gated_linear(x, *p, seed=seed, **settings, **how)


def _normal(*shape: int, seed: int, device: str, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=g) + shift).to(device)


def _parameters(
    rows: int, cols: int, gated: bool, block: tuple[int, int] = (1, 1), device: str = "cpu"
) -> list[Tensor | None]:
    grid = reference.grid_shape(rows, cols, block)
    return [
        _normal(rows, cols, seed=1, scale=0.3, device=device),
        _normal(rows, cols, seed=2, scale=1.5, shift=-3.0, device=device),
        _normal(*grid, seed=3, scale=2.0, device=device) if gated else None,
        _normal(rows, seed=4, device=device), _normal(rows, seed=5, shift=-2.0, device=device),
    ]  # fmt: skip


def _run(module: Any, case: Case, dtype: torch.dtype, **how: Any) -> dict[str, Tensor]:
    """Outputs, sums, and the gradients of a scalar that all of both enter."""
    x = case.x.to(dtype).requires_grad_()
    given = [None if p is None else p.to(dtype).requires_grad_() for p in case.parameters]
    y, sums = case.function(module, x, given, torch.tensor(-987654321987, device=x.device), **how)
    dy = _normal(*y.shape, seed=9, device=str(x.device)).to(dtype)
    ds = _normal(*sums.shape, seed=10, device=str(x.device)).to(sums.dtype)
    present = [p for p in given if p is not None]
    grads = torch.autograd.grad((y * dy).sum() + (sums * ds).sum(), [x, *present], allow_unused=True)
    named = {"outputs": y, "sums": sums, "gradient of x": grads[0]}
    named |= {f"gradient of parameter {i}": g for i, g in enumerate(grads[1:])}
    return {key: value.detach() for key, value in named.items() if value is not None}


def _error(found: Tensor, exact: Tensor) -> float:
    if not exact.numel():
        return 0.0
    return float((found.double() - exact).norm() / (exact.norm() or 1.0))


def check_agreement(name: str, case: Case) -> None:
    """Outputs, sums and gradients, in float32."""
    found = _run(ops, case, torch.float32, backend=name)
    plain, exact = (_run(reference, case, dtype) for dtype in (torch.float32, torch.float64))
    where = f"{name}: {case.operator} ({case.what})"
    for key in exact:
        zero = not bool(exact[key].any())
        assert key in found or zero, f"{where} has no {key}"
        if key not in found:
            continue
        assert found[key].shape == exact[key].shape, (
            f"{where} has {key} {list(found[key].shape)}; expected {list(exact[key].shape)}"
        )
        error = _error(found[key], exact[key])
        # Plain PyTorch can be exact by luck on a handful of elements.
        allowed = 2.0 * _error(plain[key], exact[key]) + 4.0 * _EPS32
        assert error <= allowed, f"{where}: {key} have the relative error {error:.2e}; allowed is {allowed:.2e}"


def check_repeats(name: str, case: Case) -> None:
    """The same call twice gives the same bits."""
    first, again = (_run(ops, case, torch.float32, backend=name) for _ in range(2))
    for key in first:
        assert torch.equal(first[key], again[key]), (
            f"{name}: {case.operator} ({case.what}) gives other {key} when it is called again"
        )


def check_empty_batches(name: str, device: str) -> None:
    """No rows give no outputs, and the gradient of the sums."""
    p = _parameters(7, 5, True, device=device)
    x = torch.empty(0, 5, device=device)
    for case in (
        Case("gated_linear", "no rows", x, p, _gated()),
        Case("local_linear", "no rows", x, p, lambda m, x, p, s, **k: m.local_linear(x, *p, seed=s, **k)),
    ):
        check_agreement(name, case)


def check_numbers_that_are_not_finite(backend: Backend, name: str, device: str) -> None:
    """A parameter of NaN raises a ValueError, or comes out as NaN: what ``raises_on_nan`` says."""
    p = _parameters(7, 5, True, device=device)
    p[0] = torch.full_like(p[0], math.nan)  # type: ignore[arg-type]
    x = _normal(3, 5, seed=1, device=device)
    try:
        y, sums = ops.gated_linear(x, *p, seed=torch.tensor(1, device=device), backend=name)  # type: ignore[arg-type]
    except ValueError:
        assert backend.raises_on_nan, f"{name} raises for parameters of NaN, and raises_on_nan is False"
        return
    assert not backend.raises_on_nan, f"{name} takes parameters of NaN, and raises_on_nan is True"
    assert bool(y.isnan().all() and sums.isnan().any()), f"{name} makes numbers of parameters of NaN"


__all__: Sequence[str] = ("OPERATORS", "Case", "cases", "check_backend")
