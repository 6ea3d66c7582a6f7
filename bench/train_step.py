"""Time of a training step, against a dense network and against plain PyTorch.

    python bench/train_step.py [--quick] [--json FILE]

Variants run in turn, a few steps each, for many rounds, so that whatever else the machine does hits
all of them. ``seconds`` is the median over rounds of a round's median step, ``ratio_to_dense`` the
median of the ratio within a round. What the variants are: bench/variants.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import Row, machine, print_table, write_json
from tqdm import tqdm
from variants import VARIANTS, Problem, make_step, parse_problem, read_problems

COLUMNS = {
    "shape": "s", "batch": "d", "threads": "d", "variant": "s", "temperature": "g",
    "seconds": ".5f", "ratio_to_dense": ".2f", "best_ratio": ".2f",
}


def time_steps(
    steps: dict[str, Callable[[], None]], seconds: float, progress: tqdm
) -> dict[str, list[float]]:
    """For each variant the median step time of every round."""
    for step in steps.values():
        for _ in range(3):
            step()
    # About 30 ms of steps per variant and round: long enough to warm the caches, short enough that a
    # change of the machine's speed falls between rounds.
    counts = {}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        counts[name] = max(2, min(20, round(0.03 / (time.perf_counter() - start))))
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(rounds["dense"]) < 5:
        for name, step in steps.items():
            step()
            times = []
            for _ in range(counts[name]):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            rounds[name].append(statistics.median(times))
        progress.set_postfix(rounds=len(rounds["dense"]))
    return rounds


def run(problem: Problem, threads: int, args: argparse.Namespace, progress: tqdm) -> list[Row]:
    torch.set_num_threads(threads)
    chosen = args.variants or [v for v in VARIANTS if not (args.quick and ":" in v)]
    names = [v for v in VARIANTS if v in chosen or v == "dense"]
    steps = {name: make_step(name, problem, args.temperature) for name in names}
    rounds = time_steps(steps, args.seconds, progress)
    dense = rounds["dense"]
    return [
        {
            "shape": problem.shape,
            "batch": problem.batch,
            "threads": threads,
            "variant": name,
            "temperature": args.temperature if "concrete" in name or "naive" in name else None,
            "seconds": statistics.median(times),
            "ratio_to_dense": statistics.median(t / d for t, d in zip(times, dense)),
            "best_seconds": min(times),
            "best_ratio": min(times) / min(dense),
            "rounds": len(times),
            "machine": machine(),
        }
        for name, times in rounds.items()
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one network, a minute")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--threads", type=int, nargs="+", default=None, help="default: 1 2 (quick: 1)")
    parser.add_argument(
        "--shapes", nargs="+", type=parse_problem, help="e.g. 784-400-600-10:100; default: bench/shapes.txt"
    )
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, help="default: all (quick: not :reference)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.001, help="of the gates; the paper's scripts use 0.001"
    )
    parser.add_argument("--seconds", type=float, default=None, help="a network and thread count")
    args = parser.parse_args(argv)
    threads = args.threads or ([1] if args.quick else [1, 2])
    if any(t < 1 for t in threads):
        parser.error(f"--threads {threads}: expected at least 1")
    args.seconds = args.seconds or (25.0 if args.quick else 120.0)
    problems = args.shapes or (read_problems()[:1] if args.quick else read_problems())

    print(machine())
    rows: list[Row] = []
    cases = [(p, t) for p in problems for t in threads]
    with tqdm(cases, unit="case", disable=None) as progress:
        for problem, count in progress:
            progress.set_description(f"{problem.shape} b{problem.batch}, {count} threads")
            rows += run(problem, count, args, progress)
    print_table(rows, COLUMNS)
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
