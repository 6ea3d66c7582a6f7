"""Peak memory of a training step above what parameters and optimiser state take.

    python bench/memory.py [--quick] [--json FILE]

Each variant has a process of its own. It takes two steps (so that the optimiser's state exists),
drops the gradients, hands free memory back to the system, notes what is resident, and takes three
more steps; ``peak_mb`` is the highest resident memory of those above what was noted (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import torch
from report import Row, machine, print_table, write_json
from tqdm import tqdm
from variants import VARIANTS, Problem, make_step, parse_problem, read_problems

COLUMNS = {
    "shape": "s", "batch": "d", "threads": "d", "variant": "s", "peak_mb": ".1f", "ratio_to_naive": ".3f",
}


def resident(field: str) -> float:
    """VmRSS or VmHWM of this process, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024.0


def measure(variant: str, problem: Problem, threads: int) -> float:
    torch.set_num_threads(threads)
    step = make_step(variant, problem, temperature=0.001)
    for _ in range(2):
        step()
    for obj in gc.get_objects():
        if type(obj) is torch.nn.Parameter:  # isinstance would look through dead weak proxies
            obj.grad = None
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    baseline = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    for _ in range(3):
        step()
    return resident("VmHWM") - baseline


def measure_in_process(variant: str, problem: Problem, threads: int) -> float:
    shape = f"{problem.shape}:{problem.batch}"
    command = [sys.executable, __file__, "--one", variant, "--shapes", shape, "--threads", str(threads)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{variant}: {result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one network, without the slow variants")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--shapes", nargs="+", type=parse_problem, help="e.g. 784-400-600-10:100; default: bench/shapes.txt"
    )
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="default: all")
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.threads < 1:
        parser.error(f"--threads {args.threads}: expected at least 1")
    if args.one:
        print(json.dumps(measure(args.one, args.shapes[0], args.threads)))
        return

    problems = args.shapes or read_problems()
    if args.quick and not args.shapes:
        problems = [p for p in problems if "2048" in p.shape][:1]
    slow = ("naive-compiled", "lbbnn-concrete:reference", "lbbnn-local:reference")
    variants = args.variants or [v for v in VARIANTS if not (args.quick and v in slow)]
    if "naive" not in variants:
        variants = ["naive", *variants]
    print(machine())
    rows: list[Row] = []
    cases = [(p, v) for p in problems for v in variants]
    for problem, variant in (progress := tqdm(cases, unit="process", disable=None)):
        progress.set_description(f"{problem.shape} b{problem.batch} {variant}")
        rows.append(
            {
                "shape": problem.shape,
                "batch": problem.batch,
                "threads": args.threads,
                "variant": variant,
                "peak_mb": measure_in_process(variant, problem, args.threads),
                "machine": machine(),
            }
        )
    naive = {(r["shape"], r["batch"]): r["peak_mb"] for r in rows if r["variant"] == "naive"}
    for row in rows:
        row["ratio_to_naive"] = row["peak_mb"] / naive[row["shape"], row["batch"]]
    print_table(rows, COLUMNS)
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
