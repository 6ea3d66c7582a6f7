"""The project's kernels, run from their compiled sm_80 PTX, and the command that does it.

    python tests/ptx/kernel_cases.py OUT CASE [CASE ...]      writes {case: results} with torch.save

In a process of its own: Triton must compile there, and a test session may have told it to
interpret. Cases and their inputs are functions of their names, so that the tests that read the
results compute the expected values from the same inputs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

import torch
from helpers import make_parameters
from torch import Tensor

SEED = torch.tensor(-987654321987)
#: An upstream gradient of the five sums with every entry at work.
DSUMS = torch.tensor([1.0, 0.3, 0.2, -0.5, 0.7])
GRADIENTS = ("dkappa", "drho", "domega", "dbias_kappa", "dbias_rho")
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True)
class Case:
    """A layer, a batch and how it is computed."""

    batch: int
    rows: int
    cols: int
    precision: str = "fp32"
    samples: int = 1
    per_sample: bool = False
    block: tuple[int, int] = (1, 1)
    gated: bool = True
    bias: bool = True
    hard: bool = False
    temperature: float = 0.5
    #: Whether sampled weights are staged, and in how many pieces a reduction is cut; None: as the
    #: tables say.
    staged: bool | None = None
    splits: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    def parameters(self) -> list[Tensor | None]:
        made = make_parameters(
            self.rows, self.cols, block=self.block, gated=self.gated, bias=self.bias
        )
        return [None if p is None else p.detach() for p in made]

    def x(self) -> Tensor:
        g = torch.Generator().manual_seed(5)
        lead = (self.samples,) if self.per_sample else ()
        return torch.randn(*lead, self.batch, self.cols, generator=g).to(self.dtype)

    def dy(self) -> Tensor:
        g = torch.Generator().manual_seed(9)
        return torch.randn(self.samples, self.batch, self.rows, generator=g).to(self.dtype)

    def draw(self) -> dict:
        return {
            "seed": SEED, "samples": self.samples, "block": self.block, "hard": self.hard,
        }  # fmt: skip


#: Rows and columns in multiples of 16 get the wide loads and asynchronous copies that large layers
#: get; the odd ones get none of them.
GATED = {
    "fp32": Case(20, 80, 96),
    "tf32": Case(20, 80, 96, "tf32"),
    "bf16": Case(20, 80, 96, "bf16"),
    "fp16": Case(20, 80, 96, "fp16"),
    "fp32-odd": Case(9, 41, 43),
    "bf16-two-samples": Case(7, 48, 64, "bf16", samples=2, per_sample=True),
    "fp32-blocks": Case(7, 48, 64, samples=2, block=(5, 7)),
    "fp32-dense": Case(7, 48, 64, gated=False, bias=False),
    "bf16-staged-split": Case(40, 80, 96, "bf16", staged=True, splits=2),
    "fp32-hard": Case(7, 48, 64, hard=True),
}


def run_gated(case: Case) -> dict[str, Tensor]:
    """y, sums and all gradients, through the functions that launch the kernels on a GPU."""
    from fastlbbnn.kernels import configs, launch, launch_backward

    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    parameters, x, dy = case.parameters(), case.x(), case.dy()
    layer = launch.Layer(*parameters, **case.draw(), inv_temperature=1.0 / case.temperature)
    sinks = launch_backward.Sinks.gradients(parameters)
    with configs.pin(**_pinned(case)):
        y, sums = launch.gated_linear_fwd(x, layer)
        dx = launch_backward.gated_linear_bwd(dy, DSUMS, x, layer, True, sinks)
    grads = sinks.tensors(x)
    named = {name: g for name, g, p in zip(GRADIENTS, grads, parameters) if p is not None}
    return {"y": y, "sums": sums, "dx": dx, **named}


#: The same for the estimator that draws activations.
LOCAL = {"local-fp32": Case(20, 80, 96), "local-bf16": Case(20, 80, 96, "bf16")}


def run_local(case: Case) -> dict[str, Tensor]:
    from fastlbbnn.kernels import launch, launch_backward, launch_local

    torch.set_float32_matmul_precision("highest")
    parameters, x = case.parameters(), case.x()
    layer = launch.Layer(*parameters, seed=SEED, samples=case.samples)
    sinks = launch_backward.Sinks.gradients(parameters)
    y, sums, ratio = launch_local.local_linear_fwd(x, layer)
    dx = launch_local.local_linear_bwd(case.dy(), DSUMS, x, layer, ratio, True, sinks)
    return {"y": y, "sums": sums, "dx": dx, **dict(zip(GRADIENTS, sinks.tensors(x)))}


def _pinned(case: Case) -> dict:
    """The tables' tiles, with the staging and the pieces that the case asks for."""
    from fastlbbnn.kernels import configs

    shape = (case.batch, case.rows, case.cols)
    return {
        name + kind: replace(
            configs.choose(name + kind, torch.device("cpu"), case.dtype, shape),
            staged=case.staged, splits=case.splits,
        )
        for name in ("gated_linear_fwd", "gated_linear_bwd_input")
        for kind in ("", "_staged")
    }  # fmt: skip


def run_noise() -> dict[str, Tensor]:
    """eps and gates' noise of a tile that starts inside the layer, as the kernels draw them."""
    from ptx.noise_kernel import draw_noise

    return draw_noise(SEED)


def main() -> None:
    from ptx.driver import emulated_gpu

    out, *names = sys.argv[1:]
    results = {}
    for name in names:
        start = time.perf_counter()
        with emulated_gpu():
            if name == "noise":
                results[name] = run_noise()
            else:
                results[name] = run_local(LOCAL[name]) if name in LOCAL else run_gated(GATED[name])
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    torch.save(results, out)


if __name__ == "__main__":
    main()
