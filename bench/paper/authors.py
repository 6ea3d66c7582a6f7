"""Trains networks by the authors' objective and writes the rows of the paper's tables.

    python bench/paper/authors.py --dataset phoneme --method LBBNN-GP-MF --seeds 0 1 2 \
        --out bench/results

Rows are written after every seed; a run whose rows are in the file already is skipped, so that an
interrupted call continues where it stopped. What the objective gets wrong: README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

# `authors` is the package beside this file; a package comes before a module of its name.
from authors import data, gated_draw, results, training
from authors.methods import METHODS


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=("phoneme", "mnist", "fmnist"), required=True)
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME",
                        help=f"one or more of {', '.join(METHODS)} (all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=250, help="pre-training included (250)")
    parser.add_argument("--post-epochs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile, slower")
    parser.add_argument("--out", type=Path, required=True, help="folder of the CSV files to add the rows to")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # gradients and moments decay into subnormal numbers, which are slow
    gated_draw.use_compiled(not args.no_compile)
    problem = data.load(args.dataset)
    for method in args.method:
        for seed in args.seeds:
            settings = {"dataset": args.dataset, "method": method, "seed": seed,
                        "epochs": args.epochs, "post_epochs": args.post_epochs}
            if results.finished(args.out, settings):
                print(f"{method} seed {seed}: in {args.out} already", file=sys.stderr)
                continue
            rows, inclusion = training.run(
                problem, method, seed, args.epochs, args.post_epochs, compiled=not args.no_compile
            )
            results.append(args.out, settings, rows, inclusion)


if __name__ == "__main__":
    main()
