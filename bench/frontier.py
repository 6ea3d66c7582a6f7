"""Accuracy at a density: the rows of bench/results/frontier.csv, on test data.

    python bench/frontier.py                                   # every row that is missing: many hours
    python bench/frontier.py --data phoneme --seeds 0,1,2
    python bench/frontier.py --data mnist --network 300-100 --method FNN-GMP
    python bench/frontier.py --summary                         # medians over the seeds, beside the goals

A row is one training run at one asked density. LBBNN rows are of the default recipe, which has nothing to set
but that density; it was chosen on validation splits (docs/recipe.md). FNN-GMP is a plain network, pruned
gradually by magnitude, with as many epochs as take the same time. `accuracy` is the selected model's at its
means; the figures after it are of 50 draws of its weights, averaged. `dense_epochs` are the seconds in epochs
of a plain network of that size, timed just before. Rows that are there are not measured again.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fastlbbnn import data
from fastlbbnn._util.files import replace_file
from fastlbbnn.data import Dataset
from fastlbbnn.inference.dial import DensityDial
from fastlbbnn.inference.optim import Adam
from fastlbbnn.nn.modes import WeightMode
from fastlbbnn.prediction import metrics
from fastlbbnn.prediction.predict import predict
from fastlbbnn.runs import Recipe, find_method, find_recipe, train
from fastlbbnn.runs.pruning import weight_density
from fastlbbnn.runs.recipes import pruned_recipe

RESULTS = Path(__file__).parent / "results" / "frontier.csv"
COLUMNS = (
    "data", "network", "method", "recipe", "seed", "asked", "density", "weights", "accuracy",
    "accuracy_averaged", "nll", "ece", "epochs", "seconds", "dense_epochs",
)  # fmt: skip
DRAWS = 50


class Goal(NamedTuple):
    """What is asked for, a density or (above 1) a number of weights, and the accuracy that is hoped for."""

    data: str
    network: str
    asked: float
    accuracy: float


GOALS = (
    Goal("mnist", "400-600", 0.015, 0.985), Goal("mnist", "400-600", 0.01, 0.984),
    Goal("mnist", "400-600", 0.005, 0.982), Goal("mnist", "400-600", 1000, 0.978),
    Goal("mnist", "400-600", 600, 0.970), Goal("mnist", "300-100", 0.015, 0.983),
    Goal("mnist", "300-100", 0.01, 0.982), Goal("fmnist", "400-600", 0.03, 0.898),
    Goal("fmnist", "400-600", 0.015, 0.895), Goal("fmnist", "400-600", 0.005, 0.885),
    Goal("phoneme", "400-600", 0.01, 0.932), Goal("phoneme", "400-600", 0.001, 0.930),
    Goal("phoneme", "400-600", 85, 0.927),
)  # fmt: skip
METHODS = ("LBBNN-GP-MF", "FNN-GMP")


def dense_epoch_seconds(dataset: Dataset, hidden: tuple[int, ...], batch: int, steps: int = 40) -> float:
    """An epoch of the plain network with Adam, from the median of some steps."""
    network = find_method("FNN").build((dataset.inputs, *hidden, dataset.outputs), dataset.n_train)
    optimizer = Adam(network.parameters(), lr=1e-3)
    times = []
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % dataset.n_train
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(dataset.x_train[rows]), dataset.y_train[rows]).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:]) * dataset.n_train / batch


def measure(goal: Goal, method: str, seed: int, dataset: Dataset, epochs: int | None) -> dict[str, Any]:
    hidden = tuple(map(int, goal.network.split("-")))
    recipe = _recipe(goal, method, dataset, hidden, epochs)
    total = recipe.total_weights(dataset.inputs, dataset.outputs)
    dense = dense_epoch_seconds(dataset, hidden, recipe.batch)
    with tempfile.TemporaryDirectory() as folder:
        run = train(method, dataset, recipe, seed=seed, out=folder, progress=False)
        model, done = run.model(), len(run.history)
    generator = torch.Generator().manual_seed(seed)
    if method == "FNN-GMP":
        averaged = at_means = predict(model, dataset.x_test, mode=WeightMode.MEAN)
        kept = round(weight_density(model) * total)
    else:
        at_means = predict(model, dataset.x_test, mode=WeightMode.MEDIAN_MEAN)
        averaged = predict(
            model, dataset.x_test, mode=WeightMode.MEDIAN, samples=DRAWS, generator=generator
        )
        kept = DensityDial(model, density=1.0, steps=1).median_weights
    seconds = run.config["seconds"]
    y = dataset.y_test
    return {
        "data": goal.data, "network": goal.network, "method": method, "recipe": recipe.name, "seed": seed,
        "asked": f"{goal.asked:g}", "density": f"{kept / total:.6f}", "weights": kept,
        "accuracy": f"{metrics.accuracy(at_means, y):.4f}",
        "accuracy_averaged": f"{metrics.accuracy(averaged, y):.4f}",
        "nll": f"{metrics.nll(averaged, y):.4f}", "ece": f"{metrics.ece(averaged, y):.4f}",
        "epochs": done, "seconds": f"{seconds:.1f}", "dense_epochs": f"{seconds / dense:.1f}",
    }  # fmt: skip


def _recipe(goal: Goal, method: str, data: Dataset, hidden: tuple[int, ...], epochs: int | None) -> Recipe:
    asked = {"density": goal.asked} if goal.asked < 1.0 else {"weights": int(goal.asked)}
    default = replace(find_recipe("LBBNN-GP-MF", "default"), hidden=hidden).asking(**asked)
    if method != "FNN-GMP":
        return default if epochs is None else default.scaled(epochs)
    # As long as the default recipe takes: a step of local reparametrisation takes 2.5 times a plain one, and
    # one of a held structure 0.3 times or less (bench/results/sparse_train.csv).
    outer = (data.inputs, data.outputs)
    path, held = default.for_rows(data.n_train, outer).stages
    long = round(2.5 * path.until_epoch + 0.3 * (held.until_epoch - path.until_epoch))
    density = default.weights_asked(*outer) / default.total_weights(*outer)
    return replace(pruned_recipe(density), hidden=hidden).scaled(long if epochs is None else epochs)


def read() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: list[dict[str, Any]]) -> None:
    with replace_file(RESULTS) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def missing(arguments: argparse.Namespace) -> Iterator[tuple[Goal, str, int]]:
    known = {(r["data"], r["network"], r["method"], r["asked"], r["seed"]) for r in read()}
    for seed in arguments.seeds:
        for goal in GOALS:
            if goal.data not in arguments.data or arguments.network not in (None, goal.network):
                continue
            for method in arguments.method:
                if (goal.data, goal.network, method, f"{goal.asked:g}", str(seed)) not in known:
                    yield goal, method, seed


def summary() -> None:
    rows = read()
    print("data     network   asked    method        seeds  median  lowest  highest  goal   ECE")
    for goal in GOALS:
        for method in METHODS:
            found = [
                r for r in rows
                if (r["data"], r["network"], r["asked"], r["method"])
                == (goal.data, goal.network, f"{goal.asked:g}", method)
            ]  # fmt: skip
            if found:
                values = [float(r["accuracy"]) for r in found]
                ece = statistics.median(float(r["ece"]) for r in found)
                middle, low, high = statistics.median(values), min(values), max(values)
                print(
                    f"{goal.data:8} {goal.network:8} {goal.asked:7g}  {method:12} {len(found):6}  "
                    f"{middle:.4f}  {low:.4f}  {high:.4f}  {goal.accuracy:.3f}  {ece:.4f}"
                )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=lambda s: s.split(","), default=["mnist", "fmnist", "phoneme"])
    parser.add_argument("--network", help="only this one, e.g. 300-100")
    parser.add_argument("--method", type=lambda s: s.split(","), default=list(METHODS))
    parser.add_argument("--seeds", type=lambda s: [int(v) for v in s.split(",")], default=list(range(5)))
    parser.add_argument("--epochs", type=int, help="another length than the recipe's; `recipe` says so")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    if arguments.summary:
        summary()
        return
    torch.set_num_threads(arguments.threads)
    sets: dict[str, Dataset] = {}
    for goal, method, seed in list(missing(arguments)):
        if goal.data not in sets:
            sets[goal.data] = data.load(goal.data)
        row = measure(goal, method, seed, sets[goal.data], arguments.epochs)
        write([*read(), row])
        print(", ".join(f"{k} {v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
