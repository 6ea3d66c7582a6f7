"""CPU time of a training step of LBBNN-GP-MF by the authors' objective: the literal form and the fast one.

    python bench/paper/step_time.py [--sizes 256-400-600-5 784-400-600-10] [--rounds 15] [--csv FILE]

One thread; CPU time, so that other programs count little. The forms take turns, a few steps each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from authors import gated_draw, lbbnn, literal

from fastlbbnn.paper.tables import write_csv

STEPS = 5
BATCHES = {256: 35, 784: 600}


def literal_loss(network: lbbnn.AuthorsLBBNN, x: torch.Tensor, y: torch.Tensor, batches: int) -> torch.Tensor:
    divergence = torch.zeros(())
    for layer in network.layers:
        draw = literal.draw(layer)
        x = F.linear(x, draw.w, draw.bias).relu()
        divergence = divergence + draw.divergence
    return F.nll_loss(F.log_softmax(x, dim=1), y, reduction="sum") + divergence / batches


def make_step(sizes: tuple[int, ...], stage_number: int, form: str) -> Callable[[], None]:
    torch.manual_seed(0)
    network = lbbnn.AuthorsLBBNN(sizes, lbbnn.MeanFieldInclusion)
    stages = network.stages(250, 50)
    for _ in range(stage_number + 1):
        stage = next(stages)
    x, y = torch.randn(100, sizes[0]), torch.randint(sizes[-1], (100,))
    batches = BATCHES.get(sizes[0], 100)

    def step() -> None:
        gated_draw.use_compiled(form == "fast, compiled")
        stage.optimizer.zero_grad()
        loss = literal_loss(network, x, y, batches) if form == "literal" else network.loss(x, y, batches)
        loss.backward()
        stage.optimizer.step()

    return step


def measure(sizes: tuple[int, ...], rounds: int) -> list[dict]:
    rows = []
    for number, stage in enumerate(("pre-training", "training", "post-training")):
        steps = {form: make_step(sizes, number, form) for form in ("literal", "fast", "fast, compiled")}
        times: dict[str, list[float]] = {form: [] for form in steps}
        for step in steps.values():
            step()
        for _ in range(rounds):
            for form, step in steps.items():
                for _ in range(STEPS):
                    start = time.process_time()
                    step()
                    times[form].append(1e3 * (time.process_time() - start))
        for form, found in times.items():
            rows.append({
                "sizes": "-".join(map(str, sizes)), "stage": stage, "form": form, "threads": 1,
                "cpu_ms": statistics.median(found), "best_cpu_ms": min(found),
            })
            line = "{sizes:15} {stage:14} {form:15} {cpu_ms:8.2f} {best_cpu_ms:8.2f}"
            print(line.format(**rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["256-400-600-5", "784-400-600-10"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("sizes, stage, form, median and best CPU ms per step")
    rows = [row for sizes in args.sizes for row in measure(tuple(map(int, sizes.split("-"))), args.rounds)]
    if args.csv is not None:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
