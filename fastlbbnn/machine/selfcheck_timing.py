"""``selfcheck``, part three: one layer's training pass, timed against plain PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import ops
from ..reference import grid_shape

Row = dict[str, Any]


def parameters_of(
    rows: int, cols: int, device: torch.device, dtype: torch.dtype, block: tuple[int, int] = (1, 1)
) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    values = [
        torch.randn(rows, cols, generator=g) * 0.05,
        torch.randn(rows, cols, generator=g) * 0.1 - 5.0,
        torch.randn(*grid_shape(rows, cols, block), generator=g),
    ]
    return [v.to(device, dtype).requires_grad_() for v in values]


def naive_layer(x: Tensor, kappa: Tensor, rho: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """The gated layer and its KL as one writes them in PyTorch."""
    tau, alpha = F.softplus(rho), torch.sigmoid(omega)
    u = torch.rand_like(alpha).clamp(1e-6, 1 - 1e-6)
    gate = torch.sigmoid((omega - torch.logit(u)) / 0.5)
    w = gate * (kappa + tau * torch.randn_like(tau))
    entropy = alpha * torch.log(alpha) + (1 - alpha) * torch.log1p(-alpha)
    slab = alpha * 0.5 * (kappa**2 + tau**2 - 2 * torch.log(tau) - 1)
    return x @ w.T, entropy.sum() + slab.sum()


def variants(
    device: torch.device, dtype: torch.dtype, batch: int, width: int, backend: str, compiled: bool
) -> dict[str, Callable[[], None]]:
    """Name -> forward and backward of one square layer."""
    parameters = parameters_of(width, width, device, dtype)
    kappa, rho, omega = parameters
    x = torch.randn(batch, width, device=device, dtype=dtype)
    dy = torch.randn(batch, width, device=device, dtype=dtype)
    weight = parameters[0]

    def train(function: Callable, wanted: list[Tensor]) -> Callable[[], None]:
        def step() -> None:
            y, kl = function()
            torch.autograd.backward([y.reshape(dy.shape), kl], [dy, torch.ones_like(kl)])
            for p in wanted:
                p.grad = None

        return step

    def gated():
        y, sums = ops.gated_linear(x, kappa, rho, omega, temperature=0.5, backend=backend)
        return y, sums.sum()

    def gaussian():
        y, sums = ops.gated_linear(x, kappa, rho, None, backend=backend)
        return y, sums.sum()

    def local():
        y, sums = ops.local_linear(x, kappa, rho, omega, backend=backend)
        return y, sums.sum()

    def dense():
        return x @ weight.T, weight.new_zeros((), requires_grad=True) * 1.0

    found = {
        "dense": train(dense, [weight]),
        "naive": train(lambda: naive_layer(x, *parameters), parameters),
    }
    if compiled:
        fused = torch.compile(naive_layer)
        found["torch.compile"] = train(lambda: fused(x, *parameters), parameters)
    found[f"{backend} gated"] = train(gated, parameters)
    found[f"{backend} no gates"] = train(gaussian, parameters[:2])
    found[f"{backend} local"] = train(local, parameters)
    return found


def least_bytes(name: str, batch: int, width: int, dtype: torch.dtype) -> int:
    """What a pass must move: parameters in twice (forward, backward), gradients, x, y, dy, dx."""
    tensors = 1 if name == "dense" else 2 if name.endswith("no gates") else 3
    return (3 * tensors * width**2 + 4 * batch * width) * dtype.itemsize


def seconds_of(step: Callable[[], object], device: torch.device, budget: float) -> float:
    """Median time of a call, in seconds; on a GPU by its own events."""
    step()
    step()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - start < budget and len(times) < 200):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
        else:
            before = time.perf_counter()
            step()
            times.append(time.perf_counter() - before)
    return statistics.median(times)


def copy_bandwidth(device: torch.device, quick: bool) -> float:
    """Bytes a second of a large copy, read and written: the peak that a program sees."""
    size = (1 << 22) if quick else (1 << 28 if device.type == "cuda" else 1 << 25)
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device, 0.2)


def published_bandwidth(device: torch.device) -> float | None:
    """Bytes a second by the driver's clock and width of the bus, where torch tells them."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    clock = getattr(properties, "memory_clock_rate", 0)  # kHz
    width = getattr(properties, "memory_bus_width", 0)  # bits
    return 2.0 * clock * 1e3 * width / 8 if clock and width else None


def launch_seconds(device: torch.device) -> float | None:
    """Time of a launch that does nothing, in a row of them: bench/roofline.py --launch-us."""
    if device.type != "cuda":
        return None
    scalar = torch.zeros((), device=device)

    def hundred() -> None:
        for _ in range(100):
            scalar.add_(1.0)

    return seconds_of(hundred, device, 0.2) / 100


def time_layer(
    device: torch.device, dtype: torch.dtype, batch: int, width: int, backend: str, compiled: bool,
    budget: float, peak: float, progress: Callable[[str], None],
) -> list[Row]:  # fmt: skip
    rows: list[Row] = []
    for name, step in variants(device, dtype, batch, width, backend, compiled).items():
        progress(f"timing {name}, width {width}, batch {batch}")
        try:
            seconds = seconds_of(step, device, budget)
        except Exception as error:  # noted; only this library's own is a failure
            said = f"{type(error).__name__}: {error}"[:300]
            rows.append({"variant": name, "error": said, "own": name.startswith(backend)})
            continue
        moved = least_bytes(name, batch, width, dtype)
        rows.append({
            "variant": name, "width": width, "batch": batch, "dtype": str(dtype).split(".")[1],
            "seconds": seconds, "bytes_per_second": moved / seconds,
            "fraction_of_peak": moved / seconds / peak,
            "tflops": 6.0 * batch * width**2 / seconds * 1e-12,
        })  # fmt: skip
    naive = next((r.get("seconds") for r in rows if r["variant"] == "naive"), None)
    for row in rows:
        if naive and row.get("seconds"):
            row["speedup_over_naive"] = naive / row["seconds"]
    return rows
