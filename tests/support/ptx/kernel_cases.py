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
from support.helpers import make_parameters
from torch import Tensor

SEED = torch.tensor(-987654321987)
#: An upstream gradient of the five sums with every entry at work.
DSUMS = torch.tensor([1.0, 0.3, 0.2, -0.5, 0.7])
GRADIENTS = ("dkappa", "drho", "domega", "dbias_kappa", "dbias_rho")
#: Parameters as Adam leaves them; the names with _avg and _sq are its state.
STEPPED = ("kappa", "rho", "omega", "bias_kappa", "bias_rho")
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
    #: A step of Adam in place of the parameter gradients.
    adam: bool = False

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

    def adam_state(self) -> tuple[list[Tensor], list[Tensor], list[float]]:
        """exp_avg and exp_avg_sq, as after some steps, and lr, beta1, beta2, eps and step of each."""
        g = torch.Generator().manual_seed(11)
        nothing = torch.empty(0)
        present = self.parameters()
        avg = [nothing if p is None else torch.randn(p.shape, generator=g) for p in present]
        sq = [nothing if p is None else torch.rand(p.shape, generator=g) + 0.1 for p in present]
        hyper = [n for i in range(5) for n in (0.1 * (i + 1), 0.9, 0.99, 1e-8, 3.0 + i)]
        return avg, sq, hyper

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
    "bf16-adam": Case(20, 80, 96, "bf16", adam=True),
    "fp32-blocks-adam-odd": Case(9, 41, 43, samples=2, block=(5, 7), adam=True),
}


def run_gated(case: Case) -> dict[str, Tensor]:
    """y, sums and all gradients, through the functions that launch the kernels on a GPU."""
    from fastlbbnn.kernels import configs, launch, launch_backward

    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    parameters, x, dy = case.parameters(), case.x(), case.dy()
    layer = launch.Layer(*parameters, **case.draw(), inv_temperature=1.0 / case.temperature)
    sinks, state = _sinks(case, parameters)
    with configs.pin(**_pinned(case)):
        y, sums = launch.gated_linear_fwd(x, layer)
        dx = launch_backward.gated_linear_bwd(dy, DSUMS, x, layer, True, sinks)
    return {"y": y, "sums": sums, "dx": dx, **_put_away(parameters, sinks, state)}


def _sinks(case: Case, parameters: list[Tensor | None]):
    """Where gradients go, and the state of Adam if that is where."""
    from fastlbbnn.kernels.launch_backward import Sinks

    if not case.adam:
        return Sinks.gradients(parameters), None
    state = case.adam_state()
    return Sinks.steps(parameters, *state), state


def _put_away(parameters, sinks, state) -> dict[str, Tensor]:
    """Gradients by name; with Adam the parameters after the step and its state."""
    present = [i for i, p in enumerate(parameters) if p is not None]
    if state is None:
        return {GRADIENTS[i]: sinks.of[i].target for i in present}
    found = {}
    for i in present:
        found[STEPPED[i]] = parameters[i]
        found[f"{STEPPED[i]}_avg"], found[f"{STEPPED[i]}_sq"] = state[0][i], state[1][i]
    return found


#: The same for the estimator that draws activations.
LOCAL = {
    "local-fp32": Case(20, 80, 96),
    "local-bf16": Case(20, 80, 96, "bf16"),
    "local-fp32-adam": Case(7, 48, 64, adam=True),
}
#: The sums alone, forward and backward.
SUMS = {
    "sums": Case(0, 80, 96),
    "sums-blocks": Case(0, 41, 43, block=(5, 7)),
    "sums-dense": Case(0, 48, 64, gated=False),
}


def run_local(case: Case) -> dict[str, Tensor]:
    from fastlbbnn.kernels import launch, launch_local

    torch.set_float32_matmul_precision("highest")
    parameters, x = case.parameters(), case.x()
    layer = launch.Layer(*parameters, seed=SEED, samples=case.samples)
    sinks, state = _sinks(case, parameters)
    y, sums, ratio = launch_local.local_linear_fwd(x, layer)
    dx = launch_local.local_linear_bwd(case.dy(), DSUMS, x, layer, ratio, True, sinks)
    return {"y": y, "sums": sums, "dx": dx, **_put_away(parameters, sinks, state)}


def run_sums(case: Case) -> dict[str, Tensor]:
    from fastlbbnn.kernels import launch, launch_backward

    parameters = case.parameters()
    sinks, _ = _sinks(case, parameters)
    sums = launch.kl_sums_fwd(launch.Layer(*parameters, block=case.block))
    layer = launch.Layer(*parameters, samples=0, block=case.block)
    launch_backward.kl_sums_bwd(DSUMS, layer, sinks)
    return {"sums": sums, **_put_away(parameters, sinks, None)}


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
    from support.ptx.noise_kernel import draw_noise

    return draw_noise(SEED)


def run(name: str) -> dict[str, Tensor]:
    if name == "noise":
        return run_noise()
    for cases, function in ((GATED, run_gated), (LOCAL, run_local), (SUMS, run_sums)):
        if name in cases:
            return function(cases[name])
    raise SystemExit(f"no case {name!r}")


def main() -> None:
    from support.ptx.driver import emulated_gpu

    out, *names = sys.argv[1:]
    results = {}
    for name in names:
        start = time.perf_counter()
        with emulated_gpu():
            results[name] = run(name)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    torch.save(results, out)


if __name__ == "__main__":
    main()
