"""Time of a training step of a network that keeps few of its weights, against a dense network's.

    python bench/sparse_train.py [--quick] [--json FILE] [--csv FILE]

``dense``              a plain network with torch's fused Adam: what ratios are of
``dense-bf16``         the same in torch's bfloat16 autocast
``local+adam``         an LBBNN by local reparametrisation with the library's Adam: all weights are active
``active-local+adam``  the same with the kept weights alone (``FixedMLP``): the structure is held
``means+adam``         the kept weights at their means: fine-tuning a selected model

All by local reparametrisation draw one activation each. Masks are random, and every unit has a way in and a
way out: nothing could be removed. Variants run in turn, a few steps each, for many rounds, so that whatever
else the machine does hits all of them. ``seconds`` is the median over rounds of a round's median step,
``ratio_to_dense`` the median of the ratio within a round, ``best_ratio`` that of the fastest steps.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import Row, machine, print_table, write_json
from sparse_variants import random_model
from torch.nn import functional as F
from tqdm import tqdm
from variants import N_DATA, Problem, dense_net, parse_problem

import fastlbbnn
from fastlbbnn.nn import MLP, FixedMLP

COLUMNS = {
    "shape": "s", "batch": "d", "threads": "d", "density": ".3f", "variant": "s", "seconds": ".6f",
    "ratio_to_dense": ".3f", "best_ratio": ".3f", "rounds": "d",
}
PROBLEMS = ("784-400-600-10:100", "784-2048-2048-10:100", "784-2048-2048-10:512")
DENSITIES = (0.1, 0.05, 0.02, 0.01)
ESTIMATORS = {"active-local+adam": "local", "means+adam": "means"}

Step = Callable[[], None]


def dense_step(problem: Problem, half: bool) -> Step:
    x, y = problem.data()
    network = dense_net(problem.sizes)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            output = network(x)
        F.cross_entropy(output.float(), y, reduction="sum").backward()
        optimizer.step()

    return step


def bayesian_step(problem: Problem, network: MLP) -> Step:
    x, y = problem.data()
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(network, weights=1e-4, inclusion=1e-4))
    network.train()

    def step() -> None:
        bound = fastlbbnn.elbo(network, x, y, n_data=N_DATA, likelihood="categorical")
        optimizer.backward_step(bound.loss)

    return step


def steps_of(problem: Problem, densities: tuple[float, ...]) -> dict[tuple[str, float], tuple[Step, float]]:
    """By variant and density asked for: a step, and the density that there is."""
    torch.manual_seed(0)
    found = {
        ("dense", 1.0): (dense_step(problem, half=False), 1.0),
        ("dense-bf16", 1.0): (dense_step(problem, half=True), 1.0),
        ("local+adam", 1.0): (bayesian_step(problem, MLP(*problem.sizes, estimator="local")), 1.0),
    }
    for density in densities:
        for variant, estimator in ESTIMATORS.items():
            network = FixedMLP.of(random_model(problem.sizes, density, 1), estimator=estimator)
            found[variant, density] = bayesian_step(problem, network), fastlbbnn.density(network)
    return found


def time_steps(steps: dict[Any, Step], seconds: float, progress: tqdm) -> dict[Any, tuple[list[float], float]]:
    """For each variant the median step of every round, and the fastest of all."""
    counts = {}
    for key, step in steps.items():
        for _ in range(3):
            step()
        start = time.perf_counter()
        step()
        # Some 10 ms of steps a variant and round.
        counts[key] = max(2, min(10, round(0.01 / (time.perf_counter() - start))))
    rounds: dict[Any, list[float]] = {key: [] for key in steps}
    best = dict.fromkeys(steps, float("inf"))
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(rounds["dense", 1.0]) < 5:
        for key, step in steps.items():
            step()  # whose caches the variant before has spoilt
            times = []
            for _ in range(counts[key]):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            rounds[key].append(statistics.median(times))
            best[key] = min(best[key], *times)
        progress.set_postfix(rounds=len(rounds["dense", 1.0]))
    return {key: (rounds[key], best[key]) for key in steps}


def run(problem: Problem, threads: int, densities: tuple[float, ...], seconds: float, progress: tqdm) -> list[Row]:
    torch.set_num_threads(threads)
    found = steps_of(problem, densities)
    timed = time_steps({key: step for key, (step, _) in found.items()}, seconds, progress)
    dense, fastest = timed["dense", 1.0]
    return [
        {
            "shape": problem.shape,
            "batch": problem.batch,
            "threads": threads,
            "density": density,
            "kept": found[variant, density][1],
            "variant": variant,
            "seconds": statistics.median(times),
            "ratio_to_dense": statistics.median(t / d for t, d in zip(times, dense)),
            "best_seconds": best,
            "best_ratio": best / fastest,
            "rounds": len(times),
            "machine": machine(),
        }
        for (variant, density), (times, best) in timed.items()
    ]


def write_csv(rows: list[Row], path: Path | None) -> None:
    if path is None:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    print(f"wrote {path}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two networks at batch 100, one thread, under a minute")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--csv", type=Path, help="write the rows to this file as a table")
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 2 (quick: 1)")
    parser.add_argument(
        "--shapes", nargs="+", type=parse_problem, help=f"default: {' '.join(PROBLEMS)} (quick: the first two)"
    )
    parser.add_argument("--densities", type=float, nargs="+", default=list(DENSITIES))
    parser.add_argument("--seconds", type=float, help="a network and thread count; default: 60 (quick: 14)")
    args = parser.parse_args(argv)
    threads = args.threads or ([1] if args.quick else [1, 2])
    if any(t < 1 for t in threads):
        parser.error(f"--threads {threads}: expected at least 1")
    if not all(0.0 < d <= 1.0 for d in args.densities):
        parser.error(f"--densities {args.densities}: expected shares of the weights, above 0 and at most 1")
    problems = args.shapes or [parse_problem(p) for p in (PROBLEMS[:2] if args.quick else PROBLEMS)]
    seconds = args.seconds or (14.0 if args.quick else 60.0)

    print(machine())
    rows: list[Row] = []
    cases = [(p, t) for p in problems for t in threads]
    with tqdm(cases, unit="case", disable=None) as progress:
        for problem, count in progress:
            progress.set_description(f"{problem.shape} b{problem.batch}, {count} threads")
            rows += run(problem, count, tuple(args.densities), seconds, progress)
    print_table(rows, COLUMNS)
    write_json(rows, args.json)
    write_csv(rows, args.csv)


if __name__ == "__main__":
    main()
