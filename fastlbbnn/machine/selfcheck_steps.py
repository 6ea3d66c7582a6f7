"""``selfcheck``, part four: whole training steps with Adam, as multiples of a dense network's.

The figures that bench/roofline.py predicts, and that bench/score_roofline.py holds its predictions against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..inference.elbo import elbo
from ..inference.optim import Adam
from ..nn import MLP
from .selfcheck_timing import naive_layer, parameters_of, seconds_of

Row = dict[str, Any]
Step = Callable[[], None]
#: The paper's network.
NETWORK = (784, 400, 600, 10)


def layer_steps(device: torch.device, dtype: torch.dtype, batch: int, width: int, backend: str) -> dict[str, Step]:
    """Variant -> a step of one square layer: x in ``dtype``, parameters and Adam's averages in float32."""
    g = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(batch, width, generator=g).to(device, dtype) for _ in range(2))

    def dense() -> Step:
        weight = parameters_of(width, width, device, torch.float32)[0]
        optimizer = torch.optim.Adam([weight], fused=True)

        def step() -> None:
            optimizer.zero_grad()
            ((x @ weight.to(dtype).T) * dy).sum().backward()
            optimizer.step()

        return step

    def bayesian(op: str, block: tuple[int, int] = (1, 1), capturable: bool = False, own: bool = True) -> Step:
        parameters = parameters_of(width, width, device, torch.float32, block)
        make = Adam if own else torch.optim.Adam
        optimizer: Any = make(parameters, fused=True, capturable=capturable)
        options: dict[str, Any] = {"backend": backend}
        if op == "gated_linear":
            options |= {"temperature": 0.5, "block": block}

        def step() -> None:
            y, sums = getattr(ops, op)(x, *parameters, **options)
            loss = (y[0] * dy).sum() + sums.sum()
            if own:
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return step

    found = {
        "dense": dense(),
        "exact": bayesian("gated_linear"),
        "exact, torch's Adam": bayesian("gated_linear", own=False),
        "blocks-16": bayesian("gated_linear", (16, 16)),
        "local": bayesian("local_linear"),
    }
    if device.type == "cuda":
        found["exact, captured"] = captured(bayesian("gated_linear", capturable=True), device)
    return found


def network_steps(device: torch.device, batch: int, backend: str, compiled: bool) -> dict[str, Step]:
    """Variant -> a step of the paper's network on classes, in float32 (TF32 products on a GPU)."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(batch, NETWORK[0], generator=g).to(device)
    y = torch.randint(NETWORK[-1], (batch,), generator=g).to(device)

    def trained(model: nn.Module, optimizer: Any, loss: Callable[[], Tensor]) -> Step:
        def step() -> None:
            value = loss()
            if isinstance(optimizer, Adam):
                optimizer.backward_step(value)
            else:
                optimizer.zero_grad()
                value.backward()
                optimizer.step()

        return step

    def dense() -> Step:
        layers: list[nn.Module] = []
        for a, b in zip(NETWORK, NETWORK[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        model = nn.Sequential(*layers[:-1]).to(device)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        return trained(model, optimizer, lambda: nn.functional.cross_entropy(model(x), y))

    def naive(compile_it: bool) -> Step:
        layers = nn.ParameterList(
            p for a, b in zip(NETWORK, NETWORK[1:]) for p in parameters_of(b, a, device, torch.float32)
        )

        def loss(h: Tensor, y: Tensor) -> Tensor:
            total = h.new_zeros(())
            for i in range(0, len(layers), 3):
                h, kl = naive_layer(torch.relu(h) if i else h, *layers[i : i + 3])
                total = total + kl
            return nn.functional.cross_entropy(h, y) + 1e-4 * total

        function = torch.compile(loss) if compile_it else loss
        return trained(layers, torch.optim.Adam(layers.parameters(), fused=True), lambda: function(x, y))

    def ours(capturable: bool) -> Step:
        model = MLP(*NETWORK).to(device)
        optimizer = Adam(model.parameters(), capturable=capturable)

        def loss() -> Tensor:
            with ops.use_backend(backend):
                return elbo(model, x, y, n_data=60_000, likelihood="categorical").loss

        return trained(model, optimizer, loss)

    found = {"dense": dense(), "naive": naive(False), "exact": ours(False)}
    if compiled:
        found["naive, torch.compile"] = naive(True)
    if device.type == "cuda":
        found["exact, captured"] = captured(ours(True), device)
    return found


def captured(step: Step, device: torch.device) -> Step:
    """The step as one CUDA graph, captured at its first call."""
    graphs: list[torch.cuda.CUDAGraph] = []

    def replay() -> None:
        if not graphs:
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            graphs.append(graph)
        graphs[0].replay()

    return replay


def time_steps(
    steps: dict[str, Step], about: Row, device: torch.device, budget: float, progress: Callable[[str], None]
) -> list[Row]:
    """Rows of ``about``, the variant, its seconds and their ratio to the dense step's."""
    rows: list[Row] = []
    for name, step in steps.items():
        progress(f"timing a step: {name}, {' '.join(map(str, about.values()))}")
        try:
            rows.append({**about, "variant": name, "seconds": seconds_of(step, device, budget)})
        except Exception as error:  # noted; only this library's own is a failure
            said = f"{type(error).__name__}: {error}"[:300]
            rows.append({**about, "variant": name, "error": said, "own": not name.startswith(("dense", "naive"))})
    dense = next((r.get("seconds") for r in rows if r["variant"] == "dense"), None)
    for row in rows:
        if dense and row.get("seconds"):
            row["ratio_to_dense"] = row["seconds"] / dense
    return rows
