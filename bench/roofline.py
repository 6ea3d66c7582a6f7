"""Predicted time of a whole training step with Adam over a dense one's, by a model that a GPU can prove wrong.

    python bench/roofline.py [--json FILE] [--csv FILE] [--widths ...] [--batches ...] [--gap-us US] [--host-us US]
    python bench/score_roofline.py REPORT.json        # a report of `fastlbbnn selfcheck --json` from a GPU

A square layer, x in bfloat16, parameters and Adam's averages in float32, one sample. The launches are those that
the library makes: its own launch code runs on tensors without data, with the tables and the number of processors
of the device, and what it asks for is written down, so slabs, pieces of a reduction and finishing kernels are all
there. For each launch: bytes from memory and from L2, products, and instructions of the compiled code by unit
(bench/results/kernel_budgets.json).

ideal   within a launch all resources overlap, except that with one program per multiprocessor (registers and
        shared memory of the compiled code say so) its loop and what follows do not overlap; no host.
serial  nothing overlaps: memory, then L2 or products, then instructions.

Where launches take the host longer (--host-us each) than the GPU, both steps wait for it, and the ratio is that
of their launches: small layers run eagerly are there, captured ones are not, and the two columns hold both.

A dense step (casts, three products, fused Adam) is given the best on both sides: every operation at its roofline.
So the truth should lie between the two columns, and the model has lost where it does not. Variants that are not
built yet are marked: their figures are what building them could give.

- ``exact``, ``local``, ``blocks-16``, ``no-gates``: what ships.
- ``bf16-moments``: Adam's averages in bfloat16, 12 bytes per weight read and written less per parameter, and twelve
  instructions for stochastic rounding.
- ``fast-noise``: 70 instructions per weight and draw less (7 rounds of one Philox for four weights; normals
  from a table; gates compared in 16 bits).
- ``kept-weight``: the sampled weight stays in bfloat16 and the vendor's products use it on both sides.
- ``all``: the last three together.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpus import GPUS, OTHERS, Gpu
from report import Row, print_table, write_json
from roofline_passes import _UNITS
from traffic import layer_operations

RESULTS = Path(__file__).parent / "results"
#: Multiples of 16, whose compiled code is counted by unit.
WIDTHS = (400, 608, 2048, 4096, 8192)
BATCHES = (128, 512, 4096)
#: Seconds of one dependent trip of the kernel that adds up partial sums: a miss, and a float64 addition.
TRIP = 0.5e-6
DTYPE = "bfloat16 beside float32"
#: Variant -> whether it is built, and the operator's arguments.
VARIANTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "exact": (True, {}),
    "blocks-16": (True, {"block": (16, 16)}),
    "no-gates": (True, {"gated": False}),
    "local": (True, {"op": "local_linear"}),
    "bf16-moments": (False, {}),
    "fast-noise": (False, {}),
    "kept-weight": (False, {}),
    "all": (False, {}),
}
COLUMNS = {
    "device": "s", "width": "d", "batch": "d", "dtype": "s", "variant": "s", "built": "s", "launches": "d",
    "dense_us": ".1f", "ideal_us": ".1f", "serial_us": ".1f", "ratio_to_dense_ideal": ".2f",
    "ratio_to_dense_serial": ".2f", "binds": "s",
}  # fmt: skip
#: Rows of the committed table.
CSV = ("device", "width", "batch", "dtype", "variant", "built", "launches", "ratio_to_dense_ideal",
       "ratio_to_dense_serial", "binds")  # fmt: skip
#: Lane instructions per weight: of a draw that fast noise saves, and of rounding two averages.
FAST_NOISE_SAVES, ROUNDING_COSTS = 70, 12


@dataclass
class Phase:
    """Work of one part of a program, over all programs."""

    memory: float = 0.0
    l2: float = 0.0
    flops: float = 0.0
    lanes: Counter = field(default_factory=Counter)

    def seconds(self, gpu: Gpu, imbalance: float) -> dict[str, float]:
        units = {
            ("load/store" if unit == "memory" else unit): self.lanes[unit] / gpu.rate(unit) for unit in _UNITS
        }
        units["issue"] = sum(self.lanes.values()) / gpu.rate("issue")
        return {
            "memory bus": self.memory / gpu.bandwidth,
            "L2": self.l2 / gpu.l2_bandwidth,
            "tensor cores": imbalance * self.flops / gpu.bf16_flops,
            **{unit: imbalance * s for unit, s in units.items()},
        }


@dataclass
class Work:
    """One launch."""

    kernel: str
    loop: Phase = field(default_factory=Phase)
    once: Phase = field(default_factory=Phase)
    programs: float = math.inf
    resident: int = 2  # programs per multiprocessor
    latency: float = 0.0
    draws: float = 0.0  # weights

    def times(self, gpu: Gpu) -> tuple[float, float, str]:
        """Seconds with all overlap that there can be, with none, and what binds."""
        each = self.programs / gpu.processors
        imbalance = 1.0 if math.isinf(each) else math.ceil(each) / each
        loop, once = self.loop.seconds(gpu, imbalance), self.once.seconds(gpu, imbalance)
        both = {name: loop[name] + once[name] for name in loop}
        if self.resident >= 2:
            ideal = max(both.values())
        else:
            ideal = max(loop.values()) + max(once.values())
        arithmetic = max(both[u] for u in both if u not in ("memory bus", "L2", "tensor cores"))
        serial = both["memory bus"] + max(both["L2"], both["tensor cores"]) + arithmetic
        binds = max(both, key=both.__getitem__) if self.latency < ideal else "latency"
        return max(ideal, self.latency), serial + self.latency, binds


# --- what the library launches -------------------------------------------------------------------


def launches(gpu: Gpu, width: int, batch: int, op: str = "gated_linear", **arguments: Any) -> list[dict[str, Any]]:
    """Every launch of a step with Adam inside the backward pass: its constants, sizes and grid."""
    from fastlbbnn.machine.launch_variants import Met, launch_layer, recording

    class Notes(Met):
        def __init__(self) -> None:
            super().__init__()
            self.made: list[dict[str, Any]] = []

        def add(self, kernel: str, given: dict[str, Any], dtype: str) -> None:
            self.made.append({"kernel": kernel, **given})

    notes = Notes()
    with recording(lambda: DTYPE, processors=gpu.processors, arch=gpu.arch, met=notes):
        launch_layer(op, (batch, width, width), DTYPE, adam=True, **arguments)
    return notes.made


class Budgets:
    """Compiled kernels by what was launched."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows: dict[tuple, list[Row]] = {}
        for row in rows:
            self.rows.setdefault((row["arch"], row["kernel"], row["variant"]), []).append(row)

    def find(self, arch: str, kernel: str, variant: str, tile: list[int] | None) -> Row:
        rows = self.rows.get((arch, kernel, variant), [])
        fitting = [r for r in rows if tile is None or r["block"] == tile]
        half = [r for r in fitting if r["dtype"] == "bf16"] if tile else fitting
        if not half:
            raise SystemExit(f"no compiled row of {kernel} ({variant}) {tile} for {arch}: run bench/kernel_budgets.py")
        return half[0]

    def lanes(self, row: Row, base: Row) -> tuple[Counter, Counter]:
        """Instructions by unit of the loop and of the rest; a variant's own are the base's and what it has more."""
        loop, once = Counter(base["loop"]), Counter(base["once"])
        more = (row["instructions"] - base["instructions"]) / max(1, sum(once.values()))
        return loop, Counter({unit: count * (1.0 + more) for unit, count in once.items()})


def resident(gpu: Gpu, row: Row) -> int:
    """Programs that fit a multiprocessor at a time."""
    registers, warps = row["registers"], row["warps"]
    if gpu.arch.startswith("gfx"):
        by_registers = 4 * (512 // max(1, registers)) // max(1, warps)
    else:
        by_registers = 65536 // max(1, -(-registers // 8) * 8 * 32 * warps)
    lanes = 64 if gpu.arch.startswith("gfx") else 32
    by_memory = gpu.shared_bytes // (row["shared_bytes"] + 1024)
    return max(1, min(by_registers, by_memory, gpu.threads // (lanes * warps)))


def work_of(made: dict[str, Any], budgets: Budgets, gpu: Gpu) -> Work:
    """Bytes, products and instructions of one launch."""
    kernel, programs = made["kernel"], float(made["grid"][0])
    elements = _SIZES[kernel](made)
    counted = gpu.counted or gpu.arch
    dot = kernel.endswith(("_fwd", "_bwd_input", "_bwd_params"))
    gates = ("dense", "gated", "blocks")[made.get("GATES", 1)]
    if dot:
        name = f"{kernel}_staged" if made.get("STAGED") else kernel
        tile = [made["BM"], made["BN"], made["BK"]]
        plain = "staged" if made.get("STAGED") else "dense" if gates == "dense" else "gated"
        variant = plain if gates != "blocks" or made.get("STAGED") else "blocks"
        if made.get("ADAM"):
            variant = {"gated": "adam", "dense": "adam dense", "blocks": "adam blocks"}[gates]
        base, row = (budgets.find(counted, name, v, tile) for v in (plain, variant))
        own = budgets.find(gpu.arch, name, variant, tile)
    else:
        name = "kl_sums" if kernel == "gated_weights" and not made["DRAW"] else kernel
        base = budgets.find(counted, name, "elementwise", None)
        row, own = base, budgets.find(gpu.arch, name, "elementwise", None)
    loop, once = budgets.lanes(row, base)
    trips = elements.trips
    lanes = programs * base["warps"] * 32
    work = Work(kernel, programs=programs, resident=resident(gpu, own), latency=elements.latency, draws=elements.draws)
    work.loop.lanes = Counter({u: c * lanes * trips for u, c in loop.items()})
    work.once.lanes = Counter({u: c * lanes for u, c in once.items()})
    work.loop.memory, work.once.memory = elements.streamed(gpu), elements.memory
    work.loop.l2, work.loop.flops = elements.l2, elements.flops
    return work


@dataclass
class Sizes:
    """What a launch moves and multiplies: (bytes, times they are read) of operands of the loop."""

    operands: list[tuple[float, float]] = field(default_factory=list)
    memory: float = 0.0
    l2: float = 0.0
    flops: float = 0.0
    trips: float = 1.0
    latency: float = 0.0
    draws: float = 0.0

    def streamed(self, gpu: Gpu) -> float:
        """From memory once where half the L2 holds it, else as often as it is read."""
        return sum(size * (1.0 if size <= gpu.l2_bytes / 2 else times) for size, times in self.operands)


def _parameters(made: dict[str, Any]) -> float:
    """Bytes of parameters per weight."""
    block = made.get("block_rows", made.get("BLOCK_ROWS", 1)) * made.get("block_cols", made.get("BLOCK_COLS", 1))
    return 8.0 + (0.0 if made.get("GATES") == 0 else 4.0 / block)


def _forward(m: dict[str, Any]) -> Sizes:
    rows, K, M, S = m["rows"], m["K"], m["M"], m["samples"]
    BM, BN, BK, splits = m["BM"], m["BN"], m["BK"], m["splits"]
    m_tiles, trips = -(-M // BM), math.ceil(math.ceil(K / BK) / splits)
    outputs = S * M * rows * (4 * splits if m["SPLIT"] else 2)
    weights = rows * K * (0 if m["STAGED"] else _parameters(m))
    tile = 2 * BM * BK + (2 * BN * BK if m["STAGED"] else _parameters(m) * BN * BK)
    programs = m["grid"][0]
    return Sizes(
        # Tiles of the batch run next to each other: parameters come once, x again for strips of weights.
        operands=[(weights, 1.0), (2.0 * M * K, max(1.0, programs / m_tiles / 132))], memory=outputs,
        l2=programs * trips * tile + outputs, flops=2.0 * S * M * rows * K, trips=trips,
        draws=0.0 if m["STAGED"] else rows * K * m_tiles * S,
    )  # fmt: skip


def _input(m: dict[str, Any]) -> Sizes:
    N, cols, M, S = m["N"], m["cols"], m["M"], m["samples"]
    BM, BN, BK, splits = m["BM"], m["BN"], m["BK"], m["splits"]
    m_tiles, trips = -(-M // BM), math.ceil(math.ceil(N / BN) / splits)
    outputs = M * cols * (4 * splits if m["SPLIT"] else 2)
    weights = N * cols * (0 if m["STAGED"] else _parameters(m))
    tile = 2 * BM * BN + (2 * BN * BK if m["STAGED"] else _parameters(m) * BN * BK)
    programs = m["grid"][0]
    return Sizes(
        operands=[(weights, 1.0), (2.0 * M * N, max(1.0, programs / m_tiles / 132))], memory=outputs,
        l2=programs * trips * tile + outputs, flops=2.0 * S * M * N * cols, trips=trips,
        draws=0.0 if m["STAGED"] else N * cols * m_tiles * S,
    )  # fmt: skip


def _gradients(m: dict[str, Any]) -> Sizes:
    N, K, M, S = m["N"], m["K"], m.get("M", m.get("rows")), m.get("samples", 1)
    BM, BN, BK = m["BM"], m["BN"], m["BK"]
    programs, trips = m["grid"][0], math.ceil(M / BM) * S
    products = 2 if m["kernel"].startswith("local") else 1
    # Parameters, and with Adam two averages of each, read; all written back.
    state = _parameters(m) * (6 if m["ADAM"] else 2)
    passes = max(1.0, programs / 132 / max(1.0, min(N / BN, K / BK)))
    return Sizes(
        operands=[(2.0 * M * N * products, passes), (2.0 * M * K, passes)], memory=N * K * state,
        l2=programs * trips * 2.0 * BM * (products * BN + BK), flops=2.0 * products * S * M * N * K, trips=trips,
        draws=0.0 if products == 2 else N * K * S,
    )  # fmt: skip


def _local_forward(m: dict[str, Any]) -> Sizes:
    rows, N, K, splits = m["rows"], m["N"], m["K"], m["splits"]
    BM, BN, BK = m["BM"], m["BN"], m["BK"]
    trips, programs = math.ceil(math.ceil(K / BK) / splits), m["grid"][0]
    outputs = 8.0 * splits * rows * N
    return Sizes(
        operands=[(_parameters(m) * N * K, 1.0), (2.0 * rows * K, max(1.0, programs * BM / rows / 132))],
        memory=outputs,
        l2=programs * trips * (2 * BM * BK + _parameters(m) * BN * BK) + outputs, flops=4.0 * rows * N * K, trips=trips,
    )  # fmt: skip


def _local_input(m: dict[str, Any]) -> Sizes:
    rows, N, K, splits = m["rows"], m["N"], m["K"], m["splits"]
    BM, BN, BK = m["BM"], m["BN"], m["BK"]
    trips, programs = math.ceil(math.ceil(N / BN) / splits), m["grid"][0]
    outputs = rows * K * (4.0 * splits if m["SPLIT"] else 2.0)
    return Sizes(
        operands=[(_parameters(m) * N * K, 1.0), (4.0 * rows * N, max(1.0, programs * BM / rows / 132))],
        memory=outputs,
        l2=programs * trips * (4 * BM * BN + _parameters(m) * BN * BK) + outputs, flops=4.0 * rows * N * K, trips=trips,
    )  # fmt: skip


def _weights(m: dict[str, Any]) -> Sizes:
    count = m["rows"] * m["cols"]
    written = 2.0 * count * m["samples"] if m["DRAW"] else 0.0
    # What is written is read from L2 by the product that follows.
    return Sizes(operands=[(_parameters(m) * count, 1.0)], l2=written, draws=count * m["samples"] if m["DRAW"] else 0.0)


def _finish(bytes_each: float) -> Any:
    def sizes(m: dict[str, Any]) -> Sizes:
        count = m["size"] if "size" in m else m["samples"] * m.get("M", m.get("rows")) * m["N"]
        return Sizes(operands=[(count * (bytes_each + 4.0 * m.get("splits", 0)), 1.0)], trips=m.get("splits", 1))

    return sizes


_SIZES = {
    "gated_linear_fwd": _forward, "gated_linear_bwd_input": _input, "gated_linear_bwd_params": _gradients,
    "local_linear_fwd": _local_forward, "local_linear_bwd_input": _local_input,
    "local_linear_bwd_params": _gradients, "gated_weights": _weights,
    "finish_outputs": _finish(2.0), "finish_dx": _finish(2.0), "local_upstream": _finish(10.0),
    "local_finish": _finish(14.0),
    "kl_finish": lambda m: Sizes(latency=TRIP * math.ceil(m["partial_rows"] / 1024)),
    "bias_bwd": lambda m: Sizes(operands=[(72.0 * m["N"], 1.0)]),
    "block_gates": lambda m: Sizes(operands=[(8.0 * m["grid_rows"] * m["grid_cols"], 1.0)]),
    "block_omega": lambda m: Sizes(operands=[(28.0 * m["size"], 1.0)]),
}  # fmt: skip


# --- variants ------------------------------------------------------------------------------------


def vendor_product(batch: int, width: int) -> Work:
    size = 2.0 * width * width + 4.0 * batch * width
    work = Work("product")
    work.loop = Phase(memory=size, l2=size, flops=2.0 * batch * width * width)
    return work


def step(budgets: Budgets, gpu: Gpu, width: int, batch: int, variant: str) -> list[Work]:
    _, arguments = VARIANTS[variant]
    works = [work_of(made, budgets, gpu) for made in launches(gpu, width, batch, **arguments)]
    # The columns' sums of dy, for the biases.
    works.append(Work("sum of dy", loop=Phase(memory=2.0 * batch * width, l2=2.0 * batch * width)))
    weights = float(width * width)
    if variant in ("kept-weight", "all"):
        sampling = Work("sample", loop=Phase(memory=(12.0 + 2.0) * weights), draws=weights)
        compiled = budgets.find(gpu.counted or gpu.arch, "gated_weights", "elementwise", None)
        tile = compiled["block"][1] * compiled["block"][2]
        sampling.loop.lanes = Counter({
            u: c * compiled["warps"] * 32 * weights / tile
            for u, c in (Counter(compiled["loop"]) + Counter(compiled["once"])).items()
        })  # fmt: skip
        kept = ("gated_linear_bwd_params", "kl_finish", "bias_bwd", "sum of dy")
        product = vendor_product(batch, width)
        works = [sampling, product, product, *(w for w in works if w.kernel in kept)]
    for work in works:
        if variant in ("fast-noise", "all") and work.draws:
            _change_lanes(work, -FAST_NOISE_SAVES * work.draws)
        if variant in ("bf16-moments", "all") and work.kernel == "gated_linear_bwd_params":
            work.once.memory -= 24.0 * weights  # two averages of three parameters, two bytes less each way
            _change_lanes(work, ROUNDING_COSTS * weights)
    return works


def _change_lanes(work: Work, by: float) -> None:
    """More or fewer lane instructions, in the mixture that is there, of the larger phase."""
    phase = max((work.loop, work.once), key=lambda p: sum(p.lanes.values()))
    total = sum(phase.lanes.values())
    factor = max(0.2, 1.0 + by / total) if total else 1.0
    phase.lanes = Counter({u: c * factor for u, c in phase.lanes.items()})


def dense_step(gpu: Gpu, width: int, batch: int) -> list[float]:
    """Seconds of each operation: casts, products, and Adam on p, its gradient and two averages."""
    forward, backward = layer_operations("dense net", batch, width)
    seconds = [max(o.bytes / gpu.bandwidth, o.flops / gpu.bf16_flops) for o in [*forward, *backward]]
    return [*seconds, 28.0 * width * width / gpu.bandwidth]


def rows_of(budgets: Budgets, gpu: Gpu, width: int, batch: int, gap: float, host: float) -> Iterator[Row]:
    operations = dense_step(gpu, width, batch)
    dense_ideal = sum(operations) + gap * len(operations)
    dense_serial = max(dense_ideal, host * len(operations))
    for variant, (built, _) in VARIANTS.items():
        works = step(budgets, gpu, width, batch, variant)
        times = [work.times(gpu) for work in works]
        ideal = sum(t[0] for t in times) + gap * len(works)
        captured = sum(t[1] for t in times) + gap * len(works)
        serial = max(captured, host * len(works))
        ratios = (ideal / dense_ideal, captured / dense_ideal, serial / dense_serial)
        bound: Counter = Counter()
        for seconds, _, binds in times:
            bound[binds] += seconds
        bound["launches"] += gap * len(works)
        yield {
            "device": gpu.name, "width": width, "batch": batch, "dtype": "bfloat16", "variant": variant,
            "built": "yes" if built else "no", "launches": len(works), "dense_us": dense_ideal * 1e6,
            "ideal_us": ideal * 1e6, "serial_us": serial * 1e6, "ratio_to_dense_ideal": min(ratios),
            "ratio_to_dense_serial": max(ratios), "binds": bound.most_common(1)[0][0],
        }  # fmt: skip


def predictions(
    budgets: Path, widths: list[int], batches: list[int], gap: float, host: float
) -> list[Row]:
    known = Budgets(json.loads(budgets.read_text()))
    return [
        row
        for gpu in (*GPUS, *OTHERS) for width in widths for batch in batches
        for row in rows_of(known, gpu, width, batch, gap, host)
    ]  # fmt: skip


def write_csv(rows: list[Row], path: Path | None) -> None:
    if path is None:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV)
        for row in rows:
            writer.writerow([f"{row[c]:.3f}" if isinstance(row[c], float) else row[c] for c in CSV])
    print(f"wrote {path}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=Path, default=RESULTS / "kernel_budgets.json", help="Compiled kernels.")
    parser.add_argument("--json", type=Path, help="File for all rows.")
    parser.add_argument("--csv", type=Path, help="File for the rows that are committed.")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--gap-us", type=float, default=1.0, help="Least time between two launches on the GPU.")
    parser.add_argument("--host-us", type=float, default=8.0, help="Time that a launch takes the host.")
    args = parser.parse_args(argv)
    if min([*args.widths, *args.batches]) < 1 or min(args.gap_us, args.host_us) < 0:
        parser.error("widths and batches must be at least 1, times at least 0")
    if not args.budgets.exists():
        parser.error(f"--budgets {args.budgets}: no such file; bench/kernel_budgets.py --json writes it")
    rows = predictions(args.budgets, args.widths, args.batches, args.gap_us * 1e-6, args.host_us * 1e-6)
    print_table(rows, COLUMNS)
    print("\npredicted from published limits and compiled code; nothing here was measured")
    write_json(rows, args.json)
    write_csv(rows, args.csv)


if __name__ == "__main__":
    sys.exit(main())
