"""Time of a prediction with a selected network, against dense and other sparse ones.

    python bench/sparse.py [--quick] [--json FILE] [--plot FILE]
    python bench/sparse.py --from a.json b.json --json all.json --plot all.png
    python bench/sparse.py --all                        (all of bench/results/sparse*, a quarter of an hour)

Variants run in turn, a few calls each, for several rounds, so that whatever else the machine does hits
all of them. ``seconds`` is the median over rounds of a round's median call (for all samples of it),
``speedup_over_dense`` the median of the ratio within a round. ``density`` is that of the mask; a shape
with ``/mnist`` is a network trained on MNIST, with its own median model as the mask (of which much can be
removed physically), one with ``/pruned`` has a random mask of which much has no path and is removed (to some
1,000 and 2,000 weights), others have a random mask in which nothing can. ``rows_per_second`` counts rows of
the batch, whatever the samples. What the variants are:
bench/sparse_variants.py.

``--all`` writes sparse.json (one thread), sparse_threads.json (one and two) and sparse_avx2.json (in a
process of its own in which this library, MKL, oneDNN and torch keep to AVX2).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from report import Row, machine, print_table, write_json
from sparse_variants import (
    AVX2,
    KL_WEIGHTS,
    Case,
    Predict,
    missing_data,
    model_of,
    selected,
    trained_density,
    variants,
)
from tqdm import tqdm

COLUMNS = {
    "shape": "s", "density": ".3f", "block": "d", "batch": "d", "samples": "d", "threads": "d",
    "variant": "s", "seconds": ".7f", "speedup_over_dense": ".2f", "rows_per_second": ".4g",
}
SHAPES = ("784-400-600-10", "784-2048-2048-10", "4096-4096")
#: Of random masks that are pruned: about 1,000, 1,500 and 2,000 weights of 784-400-600-10 are left.
PRUNED = (0.0088, 0.0103, 0.0115)
DENSITIES = (0.003, 0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.3, 0.5)
BATCHES = (1, 8, 32, 100, 1000)
BLOCKS = (8, 16, 32)


def cases_of(args: argparse.Namespace) -> list[Case]:
    """All that is measured, in order."""
    if args.quick:
        small = (784, 400, 600, 10)
        cases = [Case(small, 0.08, batch=b) for b in BATCHES]
        cases += [Case(small, d, batch=100) for d in (0.02, 0.2, 0.5)]
        cases += [Case(small, 0.1, block=16, batch=b) for b in (32, 100)]
        cases += [Case(small, PRUNED[0], batch=b, pruned=True) for b in (100, 1000)]
        return [*cases, Case(small, 0.08, batch=100, samples=10)]
    cases = []
    for shape in args.shapes:
        sizes = tuple(map(int, shape.split("-")))
        for threads in args.threads:
            at = {"threads": threads}
            cases += [Case(sizes, d, batch=b, **at) for d in args.densities for b in args.batches]
            # Blocks: every size at one density, and 16 x 16 at all of them.
            grid = [(16, d) for d in args.densities] + [(k, 0.1) for k in BLOCKS if k != 16]
            cases += [
                Case(sizes, d, block=k, batch=b, **at)
                for (k, d), b in itertools.product(grid, args.batches) if b in (1, 32, 1000)
            ]
            cases += [
                Case(sizes, d, batch=b, samples=10, **at)
                for d, b in itertools.product((0.08, 0.3), args.batches) if b != 1000
            ]
            if shape == SHAPES[0]:
                cases += [
                    Case(sizes, d, batch=b, pruned=True, **at)
                    for d, b in itertools.product(PRUNED, (*args.batches, 128))
                ]
            if shape == SHAPES[0] and missing_data() is None:
                cases += [
                    Case(sizes, trained_density(sizes, w), batch=b, kl_weight=w, **at)
                    for w, b in itertools.product(KL_WEIGHTS, args.batches)
                ]
    return cases


def time_calls(calls: dict[str, Predict], seconds: float) -> dict[str, list[float]]:
    """For each variant the median call of every round."""
    counts, slow = {}, set()
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        # About 3 ms of calls a variant and round.
        counts[name] = max(1, min(100, round(0.003 / took)))
        if took > 0.05:  # whose caches others cannot have spoilt: all of its data come from memory
            slow.add(name)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(rounds["dense"]) < 3:
        for name, call in calls.items():
            if name not in slow:
                call()
            times = []
            for _ in range(counts[name]):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            rounds[name].append(statistics.median(times))
    return rounds


@torch.inference_mode()
def measure(case: Case, seconds: float, skipped: set[str]) -> list[Row]:
    torch.set_num_threads(case.threads)
    selected(model_of(case)).plan(case.batch)  # the plan's own measurements, apart from ours
    x = torch.rand(case.batch, case.sizes[0], generator=torch.Generator().manual_seed(0))
    calls = {}
    for name, make in variants(case).items():
        try:
            calls[name] = make(case, x)
        except ImportError as error:
            skipped.add(f"{name}: {error}")
    rounds = time_calls(calls, seconds)
    return [
        {
            "shape": case.shape,
            "density": case.density,
            "block": case.block,
            "batch": case.batch,
            "samples": case.samples,
            "threads": case.threads,
            "variant": name,
            "seconds": statistics.median(times),
            "speedup_over_dense": statistics.median(d / t for d, t in zip(rounds["dense"], times)),
            "rows_per_second": case.batch / statistics.median(times),
        }
        for name, times in rounds.items()
    ]


def plot(rows: list[Row], path: Path) -> None:
    """Speed-up against density, a panel per shape, a line per variant and batch size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [r for r in rows if r["samples"] == 1 and r["threads"] == 1 and r["block"] == 1]
    shapes = [s for s in dict.fromkeys(r["shape"] for r in shown) if "/" not in s]
    figure, axes = plt.subplots(
        1, len(shapes), figsize=(4.6 * len(shapes), 4.2), squeeze=False, layout="constrained"
    )
    batches = sorted({r["batch"] for r in shown})
    colours = dict(zip(batches, plt.get_cmap("viridis").resampled(len(batches)).colors))
    styles = {"fastlbbnn": "-", "torch-csr": ":", "scipy-csr": "--"}
    for axis, shape in zip(axes[0], shapes):
        for batch, (variant, style) in itertools.product(batches, styles.items()):
            line = sorted(
                (r["density"], r["speedup_over_dense"]) for r in shown
                if (r["shape"], r["batch"], r["variant"]) == (shape, batch, variant)
            )
            if line:
                axis.plot(*zip(*line), style, marker=".", color=colours[batch],
                          label=f"{variant}, batch {batch}" if axis is axes[0, 0] else None)
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=shape, xlabel="density")
    axes[0, 0].set_ylabel("speed-up over torch dense, 1 thread")
    figure.legend(loc="outside right center", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"wrote {path}")


RESULTS = Path(__file__).parent / "results"

#: File in results -> arguments, and what its process is told by the environment.
EVERYTHING: dict[str, tuple[list[str], dict[str, str]]] = {
    "sparse.json": (["--plot", str(RESULTS / "sparse.png")], {}),
    "sparse_threads.json": (["--shapes", SHAPES[0], "--threads", "1", "2"], {}),
    "sparse_avx2.json": (["--shapes", SHAPES[0]], AVX2),
}


def run_all() -> None:
    """Each file in a process of its own."""
    for name, (arguments, environment) in EVERYTHING.items():
        command = [sys.executable, __file__, "--json", str(RESULTS / name), *arguments]
        subprocess.run(command, env={**os.environ, **environment}, check=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one network, a minute")
    parser.add_argument("--all", action="store_true", help="all of bench/results/sparse*")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--plot", type=Path, help="draw speed-up against density")
    parser.add_argument("--from", type=Path, nargs="+", dest="sources", help="rows of earlier runs")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--densities", nargs="+", type=float, default=DENSITIES)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=0.5, help="a case")
    args = parser.parse_args(argv)
    if args.all:
        return run_all()

    print(machine())
    rows: list[Row] = []
    skipped: set[str] = set()
    if args.sources:
        rows = [row for source in args.sources for row in json.loads(source.read_text())]
    else:
        if (reason := missing_data()) is not None and not args.quick:
            print(reason)
        cases = tqdm(cases_of(args), unit="case", disable=None)
        for case in cases:
            cases.set_description(f"{case.shape} {case.density:.3g} b{case.batch} r{case.samples}")
            rows += measure(case, args.seconds, skipped)
    print_table(rows, COLUMNS)
    for reason in sorted(skipped):
        print(f"skipped {reason}")
    write_json(rows, args.json)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
