"""Predicted times of one layer's passes on an A100, H100 and B200 beside plain PyTorch's, from published limits alone.

    python bench/roofline_passes.py [--json FILE] [--figure FILE] [--launch-us US]

A square layer of each width, a batch of each size, bfloat16 activations, float32 parameters, one
sample, forward and backward (without the optimiser). For every implementation: bytes that cross the
memory bus, work of the tensor cores, instructions of each arithmetic unit, the time that each would
take alone at the published limit, and the largest of them, which binds.

- ``dense net``, ``dense BNN``, ``naive LBBNN``: plain PyTorch, operation by operation. Their
  traffic is counted while they run on tensors without data (bench/traffic.py); each operation takes
  the longer of its traffic and its products, one after the other.
- ``fused ...``: the Triton kernels. Instructions are those of the compiled code for that
  architecture (bench/results/kernel_budgets.json, written by bench/kernel_budgets.py): the loop
  with the matrix product times its trips, and the code around it once a program.

What this leaves out: latencies, waves that do not fill the GPU, bank conflicts, and launches unless
--launch-us says what one costs. Tensors that fit the L2 cache are charged as if they came from
memory, which flatters the fused kernels at small widths, where launches decide. It is a lower bound
a kernel, not a measurement: no GPU has run any of this.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gpus import GPUS, Gpu
from report import Row, print_table, write_json
from traffic import LAYERS, Operation, layer_operations

RESULTS = Path(__file__).parent / "results"
WIDTHS = (400, 1024, 2048, 4096, 8192, 16384)
BATCHES = (32, 128, 512, 1024, 4096)

COLUMNS = {
    "gpu": "s", "width": "d", "batch": "d", "implementation": "s", "launches": "d", "mbytes": ".1f",
    "gflop": ".2f", "ginstructions": ".3f", "memory_us": ".1f", "tensor_us": ".1f", "alu_us": ".1f",
    "time_us": ".1f", "binds": "s", "naive_over_this": ".2f",
}  # fmt: skip

#: What the time of a fused kernel can be bound by, beside memory and tensor cores.
_UNITS = ("float", "integer", "multiply", "special", "memory")


@dataclass
class Work:
    """One kernel's demand on a GPU."""

    bytes: float = 0.0
    flops: float = 0.0
    #: Lane instructions by unit.
    lanes: Counter = field(default_factory=Counter)

    def times(self, gpu: Gpu) -> dict[str, float]:
        """Seconds that each resource needs on its own."""
        seconds = {
            "memory bus": self.bytes / gpu.bandwidth,
            "tensor cores": self.flops / gpu.bf16_flops,
        }
        for unit in _UNITS:
            name = "load/store" if unit == "memory" else unit
            seconds[name] = self.lanes[unit] / gpu.rate(unit)
        seconds["issue"] = sum(self.lanes.values()) / gpu.rate("issue")
        return seconds


# --- plain PyTorch -------------------------------------------------------------------------------


def plain_kernels(operations: list[Operation]) -> list[Work]:
    return [Work(bytes=o.bytes, flops=o.flops) for o in operations]


# --- fused kernels -------------------------------------------------------------------------------


def find(budgets: list[Row], gpu: Gpu, kernel: str, variant: str, batch: int = 0) -> Row:
    """The compiled kernel that a batch gets: the first tile that covers it, else the largest."""
    rows = [
        r for r in budgets
        if (r["arch"], r["kernel"], r["variant"]) == (gpu.arch, kernel, variant)
        and (variant == "elementwise" or r["dtype"] == "bf16")
    ]  # fmt: skip
    if not rows:
        raise SystemExit(
            f"no row for {kernel} ({variant}) on {gpu.arch} in the budgets: run "
            "python bench/kernel_budgets.py --json bench/results/kernel_budgets.json"
        )
    return next((r for r in rows if batch <= r["block"][0]), rows[-1])


def instructions(row: Row, programs: float, trips: float) -> Counter:
    """Lane instructions of a launch: ``trips`` times around the loop in each program."""
    lanes = Counter()
    for part, times in ((row["once"], 1.0), (row["loop"], trips)):
        for unit, count in part.items():
            lanes[unit] += count * times * programs * row["warps"] * 32
    return lanes


def streamed(tensor_bytes: float, passes: float, gpu: Gpu) -> float:
    """Bytes from memory of a tensor that is read ``passes`` times: once if half the L2 holds it."""
    return tensor_bytes * (1.0 if tensor_bytes <= gpu.l2_bytes / 2 else max(1.0, passes))


def product_with_weights(
    budgets: list[Row], gpu: Gpu, kernel: str, gated: bool, batch: int, width: int, loop_axis: int
) -> list[Work]:
    """The forward product (loop over K, axis 2) or the input gradient (loop over N, axis 1)."""
    from fastlbbnn.kernels.launch import STAGE_FROM

    row = find(budgets, gpu, kernel, "gated" if gated else "dense", batch)
    m_tiles = math.ceil(batch / row["block"][0])
    staged = (m_tiles - 1) * width * width > STAGE_FROM
    parameters, activations = (12 if gated else 8) * width**2, 2 * batch * width
    kernels = []
    if staged:
        # Sampled once into a workspace that stays in L2, then an ordinary product from there.
        sample = find(budgets, gpu, "gated_weights", "elementwise")
        programs = math.ceil(width / sample["block"][1]) * math.ceil(width / sample["block"][2])
        kernels.append(Work(parameters, 0.0, instructions(sample, programs, 1.0)))
        row = find(budgets, gpu, f"{kernel}_staged", "staged", batch)
    outer_axis = 3 - loop_axis
    outer = math.ceil(width / row["block"][outer_axis])
    trips = math.ceil(width / row["block"][loop_axis])
    programs = m_tiles * outer
    # Tiles of weights in flight at a time share a pass over the activations.
    passes = outer / max(1.0, gpu.processors / m_tiles)
    traffic = streamed(activations, passes, gpu) + activations + (0 if staged else parameters)
    work = Work(traffic, 2.0 * batch * width**2, instructions(row, programs, trips))
    return [*kernels, work]


def parameter_gradients(
    budgets: list[Row], gpu: Gpu, gated: bool, batch: int, width: int
) -> list[Work]:
    """A program owns a tile of weights and walks along the batch; parameters in, gradients out."""
    kernel = "gated_linear_bwd_params"
    row = find(budgets, gpu, kernel, "gated" if gated else "dense", batch)
    BM, BN, BK = row["block"]
    n_tiles, k_tiles = math.ceil(width / BN), math.ceil(width / BK)
    activations = 2 * batch * width
    # Programs in flight cover a strip of weights: x and dy are read again for the next strip.
    passes = n_tiles * k_tiles / gpu.processors / max(1.0, min(n_tiles, k_tiles))
    traffic = 2 * streamed(activations, passes, gpu) + 2 * (12 if gated else 8) * width**2
    lanes = instructions(row, n_tiles * k_tiles, math.ceil(batch / BM))
    return [Work(traffic, 2.0 * batch * width**2, lanes)]


def fused(
    budgets: list[Row], gpu: Gpu, gated: bool, batch: int, width: int
) -> dict[str, list[Work]]:
    forward = product_with_weights(budgets, gpu, "gated_linear_fwd", gated, batch, width, 2)
    inputs = product_with_weights(budgets, gpu, "gated_linear_bwd_input", gated, batch, width, 1)
    return {
        "forward": forward,
        "parameter gradients": parameter_gradients(budgets, gpu, gated, batch, width),
        "input gradient": inputs,
    }


# --- the table -----------------------------------------------------------------------------------


def summarise(
    gpu: Gpu, width: int, batch: int, name: str, kernels: list[Work], launch: float
) -> Row:
    """Kernels run one after the other; each takes as long as what binds it."""
    bound = Counter()
    totals = Counter()
    time = 0.0
    for work in kernels:
        seconds = work.times(gpu)
        resource = max(seconds, key=seconds.get)
        took = max(seconds[resource], launch)
        bound[resource if took > launch else "launch"] += took
        totals.update(seconds)
        time += took
    alu = max((totals[u] for u in totals if u not in ("memory bus", "tensor cores")), default=0.0)
    return {
        "gpu": gpu.name,
        "width": width,
        "batch": batch,
        "implementation": name,
        "launches": len(kernels),
        "mbytes": sum(w.bytes for w in kernels) / 1e6,
        "gflop": sum(w.flops for w in kernels) / 1e9,
        "ginstructions": sum(sum(w.lanes.values()) for w in kernels) / 1e9,
        "memory_us": totals["memory bus"] * 1e6,
        "tensor_us": totals["tensor cores"] * 1e6,
        "alu_us": alu * 1e6,
        "time_us": time * 1e6,
        "binds": bound.most_common(1)[0][0],
    }


def rows_of(budgets: list[Row], gpu: Gpu, width: int, batch: int, launch: float) -> list[Row]:
    rows = []
    for kind in LAYERS:
        forward, backward = layer_operations(kind, batch, width)
        kernels = plain_kernels([*forward, *backward])
        rows.append(summarise(gpu, width, batch, kind, kernels, launch))
    for name, gated in (("fused dense BNN", False), ("fused LBBNN", True)):
        parts = fused(budgets, gpu, gated, batch, width)
        whole = [work for kernels in parts.values() for work in kernels]
        rows.append(summarise(gpu, width, batch, name, whole, launch))
        if gated:
            for part, kernels in parts.items():
                rows.append(summarise(gpu, width, batch, f"  {part}", kernels, launch))
    naive = next(r for r in rows if r["implementation"] == "naive LBBNN")
    for row in rows:
        whole = not row["implementation"].startswith(" ")
        row["naive_over_this"] = naive["time_us"] / row["time_us"] if whole else None
    return rows


def most_gained(rows: list[Row]) -> list[str]:
    """For each GPU and batch, the width at which the fused layer gains most over the naive one."""
    lines = []
    for gpu in GPUS:
        for batch in sorted({r["batch"] for r in rows}):
            fused_rows = [
                r for r in rows
                if (r["gpu"], r["batch"], r["implementation"]) == (gpu.name, batch, "fused LBBNN")
            ]  # fmt: skip
            best = max(fused_rows, key=lambda r: r["naive_over_this"])
            lines.append(
                f"{gpu.name}, batch {batch}: fusion gains most at width {best['width']}, "
                f"{best['naive_over_this']:.1f} times; bound by {best['binds']}"
            )
    return lines


def draw(rows: list[Row], path: Path) -> None:
    """Predicted time over width, a panel for each GPU, at one batch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    batch = 128
    figure, panels = plt.subplots(
        1, len(GPUS), figsize=(13, 4.2), sharey=True, layout="constrained"
    )
    for gpu, panel in zip(GPUS, panels):
        for name in ("naive LBBNN", "dense BNN", "fused LBBNN", "fused dense BNN", "dense net"):
            line = [
                r for r in rows
                if (r["gpu"], r["batch"], r["implementation"]) == (gpu.name, batch, name)
            ]  # fmt: skip
            style = "-" if name.startswith("fused") else "--"
            widths, times = [r["width"] for r in line], [r["time_us"] for r in line]
            panel.loglog(widths, times, style, marker="o", markersize=3, label=name)
        panel.set_title(f"{gpu.name}, batch {batch}")
        panel.set_xlabel("width of a square layer")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("forward and backward, microseconds")
    panels[0].legend(fontsize=8)
    figure.suptitle("Predicted from published limits and compiled instruction counts; not measured")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"wrote {path}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budgets", type=Path, default=RESULTS / "kernel_budgets.json")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument(
        "--figure", type=Path, help="draw the predictions at batch 128 into this file"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument(
        "--launch-us", type=float, default=0.0,
        help="least time of a launch; 0: published limits only (selfcheck measures yours)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if min([*args.widths, *args.batches]) < 1 or args.launch_us < 0:
        parser.error("widths and batches must be at least 1, --launch-us at least 0")
    if not args.budgets.exists():
        parser.error(
            f"--budgets {args.budgets}: no such file; write it with "
            f"python bench/kernel_budgets.py --json {args.budgets}"
        )
    budgets = json.loads(args.budgets.read_text())
    rows = [
        row
        for gpu in GPUS
        for batch in args.batches
        for width in args.widths
        for row in rows_of(budgets, gpu, width, batch, args.launch_us * 1e-6)
    ]
    print_table(rows, COLUMNS)
    print()
    for gpu in GPUS:
        print(f"{gpu.name}: {gpu.source}")
    print("lanes a clock by unit: CUDA C++ Programming Guide, throughput of native instructions\n")
    print("\n".join(most_gained(rows)))
    write_json(rows, args.json)
    if args.figure:
        draw(rows, args.figure)


if __name__ == "__main__":
    sys.exit(main())
