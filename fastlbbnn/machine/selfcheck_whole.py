"""``selfcheck``, part two: what one call at a time does not show. Graphs, compilers, streams, devices.

Each check returns what is wrong, or None. What it needs and this machine has not is said by ``unfit``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..inference.optim import Adam

_SIZES = (48, 32, 16)
_BATCH = 24


def _layers(device: torch.device) -> list[list[Tensor | None]]:
    g = torch.Generator().manual_seed(1)
    layers: list[list[Tensor | None]] = []
    for cols, rows in zip(_SIZES, _SIZES[1:]):
        values = [
            torch.randn(rows, cols, generator=g) * 0.3, torch.randn(rows, cols, generator=g) - 3.0,
            torch.randn(rows, cols, generator=g), torch.randn(rows, generator=g),
            torch.randn(rows, generator=g) - 2.0,
        ]  # fmt: skip
        layers.append([v.to(device).requires_grad_() for v in values])
    return layers


def _data(device: torch.device, count: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(2)

    def rows(size: int) -> Tensor:
        return torch.randn(_BATCH, size, generator=g).to(device)

    return [(rows(_SIZES[0]), rows(_SIZES[-1])) for _ in range(count)]


def _loss(layers: list[list[Tensor | None]], x: Tensor, dy: Tensor, seeds: Tensor, backend: str) -> Tensor:
    y, sums = ops.gated_mlp(x, layers, seeds=seeds, temperatures=[0.5] * len(layers), backend=backend)
    return (y[0] * dy).mean() + 1e-3 * sums.sum()


def _gradients(device: torch.device, seed: int, backend: str) -> list[Tensor]:
    layers = _layers(device)
    ((x, dy),) = _data(device, 1)
    loss = _loss(layers, x, dy, torch.tensor([seed, seed + 1], device=device), backend)
    parameters = [p for layer in layers for p in layer if p is not None]
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


def _differ(got: list[Tensor], expected: list[Tensor]) -> str | None:
    for i, (a, b) in enumerate(zip(got, expected)):
        if not torch.equal(a, b):
            return f"result {i} differs by {(a.double() - b.double()).abs().max().item():.3g}"
    return None


def captured_in_a_graph(device: torch.device, backend: str) -> str | None:
    """Training steps with a capturable optimiser, replayed from one CUDA graph, are the eager ones to the bit."""
    warm, replays = 3, 3
    data = _data(device, warm + replays)
    found = []
    for capture in (False, True):
        layers, seeds = _layers(device), torch.tensor([3, 4], device=device)
        optimizer = Adam([p for layer in layers for p in layer if p is not None], lr=1e-2, capturable=True)
        x, dy = (t.clone() for t in data[0])

        def step(layers=layers, seeds=seeds, optimizer=optimizer, x=x, dy=dy) -> None:
            optimizer.backward_step(_loss(layers, x, dy, seeds, backend))
            seeds.add_(2)

        def play(run: Callable[[], Any], rows: list[tuple[Tensor, Tensor]], x=x, dy=dy) -> None:
            for new_x, new_dy in rows:
                x.copy_(new_x)
                dy.copy_(new_dy)
                run()

        if capture:
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                play(step, data[:warm])
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            play(graph.replay, data[warm:])
        else:
            play(step, data)
        found.append([p.detach().clone() for layer in layers for p in layer if p is not None])
    return _differ(*found)


def compiled(device: torch.device, backend: str, compiler: str = "inductor") -> str | None:
    """A loss under torch.compile(fullgraph=True) has the eager one's gradients to the bit."""
    expected = _gradients(device, 5, backend)[1:]
    layers = _layers(device)
    ((x, dy),) = _data(device, 1)
    parameters = [p for layer in layers for p in layer if p is not None]
    function = torch.compile(_loss, fullgraph=True, backend=compiler)
    loss = function(layers, x, dy, torch.tensor([5, 6], device=device), backend)
    return _differ(list(torch.autograd.grad(loss, parameters)), expected)


def on_two_streams(device: torch.device, backend: str) -> str | None:
    """Calls on two streams at a time give what they give one after the other."""
    expected = [_gradients(device, seed, backend) for seed in (7, 8)]
    streams = [torch.cuda.Stream(device) for _ in expected]
    got: list[list[Tensor]] = []
    for seed, stream in zip((7, 8), streams):
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            got.append(_gradients(device, seed, backend))
    torch.cuda.synchronize(device)
    return _differ([t for run in got for t in run], [t for run in expected for t in run])


def on_two_devices(device: torch.device, backend: str) -> str | None:
    """A second device of the same kind, not the current one, gives the same bits."""
    other = torch.device("cuda", (device.index or 0) + 1)
    return _differ([t.to(device) for t in _gradients(other, 9, backend)], _gradients(device, 9, backend))


def selected_networks(device: torch.device, backend: str, engine: dict[str, Any] | None = None) -> str | None:
    """The CUDA kernels of selected networks agree with those on the CPU, within the rounding of their dtype.

    A sum of two layers rounds its inputs, its weights and what lies between the layers: eight roundings
    of the result's size are beyond any of them.
    """
    from .. import select
    from ..nn import MLP

    for block in ((1, 1), (16, 16)):
        torch.manual_seed(0)
        model = MLP(64, 48, 16, 5, block=block)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("omega"):
                    p.copy_(torch.randn(p.shape) * 3.0)
                    p.view(-1)[0] = 3.0  # a path, also where a layer is one block
        chosen = select(model.eval())
        x = torch.randn(33, 64)
        expected = chosen(x)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            got = chosen.on("cuda", dtype=dtype, **(engine or {}))(x.to(device)).cpu()
            error = ((got.double() - expected.double()).norm() / expected.double().norm()).item()
            if not error <= 8.0 * torch.finfo(dtype).eps:
                return f"blocks {block}, {dtype}: off by {error:.2g}"
    return None


CHECKS: dict[str, Callable[[torch.device, str], str | None]] = {
    "captured in a CUDA graph": captured_in_a_graph,
    "under torch.compile": compiled,
    "two streams": on_two_streams,
    "two devices": on_two_devices,
    "selected networks": selected_networks,
}


def unfit(name: str, device: torch.device, devices: int | None = None) -> str | None:
    """Why this check cannot run here, or None."""
    if name == "under torch.compile":
        return None
    if device.type != "cuda":
        return "it needs a GPU"
    if name == "two devices":
        count = torch.cuda.device_count() if devices is None else devices
        if count < 2:
            return "it needs two GPUs"
        names = {torch.cuda.get_device_name(i) for i in range(2)}
        return None if len(names) == 1 else f"the first two GPUs differ: {', '.join(sorted(names))}"
    if name == "selected networks":
        from ..sparse.engines import cuda

        return cuda.unavailable()
    return None


def check_all(device: torch.device, backend: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows as of the agreement checks, and notes on what was left out."""
    rows, notes = [], []
    for name, function in CHECKS.items():
        reason = unfit(name, device)
        if reason is not None:
            notes.append(f"{backend}: {name} was not checked: {reason}")
            continue
        try:
            wrong = function(device, backend)
        except Exception as error:  # a check that cannot run is a finding, not the end
            wrong = f"{type(error).__name__}: {error}"[:500]
        rows.append({
            "backend": backend, "device": str(device), "op": "whole", "what": name, "precision": "float32",
            "shape": [_BATCH, *_SIZES], "ok": wrong is None, "worst": None if wrong else 0.0,
            "where": wrong or "", "repeatable": wrong is None,
        })  # fmt: skip
    return rows, notes
