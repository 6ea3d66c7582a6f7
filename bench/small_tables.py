"""Small tables: the default recipe at 2 % beside scikit-learn. Rows of bench/results/small_tables.csv.

    python bench/small_tables.py                       # ten splits of every data set, what is missing
    python bench/small_tables.py --data wine,iris --splits 0,1
    python bench/small_tables.py --summary

A quarter of the rows is held out. `score` is accuracy for classes and root mean squared error, in standard
deviations of the training targets, for numbers; `nll` is per held-out row, of averaged draws where there are
draws. The LBBNN has 100-100 units and is asked for 2 % of its weights, with no setting that depends on the
data. The plain network is scikit-learn's, of as many units, with early stopping; linear is logistic or ridge
regression, with the penalty chosen by cross-validation.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor

from fastlbbnn._util.files import replace_file
from fastlbbnn.data import Dataset
from fastlbbnn.nn.modes import WeightMode
from fastlbbnn.prediction import metrics
from fastlbbnn.prediction.predict import log_prob_draws, predict
from fastlbbnn.runs import find_recipe, train

RESULTS = Path(__file__).parent / "results" / "small_tables.csv"
COLUMNS = ("data", "model", "split", "density", "score", "nll")
DENSITY = 0.02

DATA: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast_cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "friedman1": lambda: datasets.make_friedman1(500, 10, noise=1.0, random_state=7),
    "moons": lambda: datasets.make_moons(500, noise=0.2, random_state=7),
    "classification": lambda: datasets.make_classification(
        600, 20, n_informative=6, n_redundant=4, n_classes=3, random_state=7
    ),
}
MODELS = ("LBBNN-GP-MF", "linear", "plain network")


def load(name: str, split: int) -> Dataset:
    """Features, and targets that are numbers, standardised by the training rows."""
    x, y = DATA[name]()
    order = np.random.RandomState(split).permutation(len(x))
    cut = len(x) * 3 // 4
    train_rows, test_rows = order[:cut], order[cut:]
    mean, deviation = x[train_rows].mean(0), x[train_rows].std(0)
    x = (x - mean) / np.where(deviation < 1e-9, 1.0, deviation)
    numbers = y.dtype.kind == "f"
    if numbers:
        y = (y - y[train_rows].mean()) / y[train_rows].std()
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    targets = targets.float() if numbers else targets.long()
    return Dataset(
        name, inputs[train_rows], targets[train_rows], inputs[test_rows], targets[test_rows],
        "gaussian" if numbers else "categorical", n_classes=None if numbers else int(y.max()) + 1,
    )  # fmt: skip


def measure(name: str, model: str, split: int, hidden: tuple[int, ...]) -> dict[str, Any]:
    data = load(name, split)
    if model == "LBBNN-GP-MF":
        density, score, nll = _lbbnn(data, split, hidden)
    else:
        density, (score, nll) = 1.0, _sklearn(data, model, split)
    return {
        "data": name, "model": model, "split": split, "density": f"{density:.6f}", "score": f"{score:.4f}",
        "nll": f"{nll:.4f}",
    }  # fmt: skip


def _lbbnn(data: Dataset, seed: int, hidden: tuple[int, ...]) -> tuple[float, float, float]:
    recipe = replace(find_recipe("LBBNN-GP-MF", "default"), hidden=hidden).asking(density=DENSITY)
    with tempfile.TemporaryDirectory() as folder:
        run = train("LBBNN-GP-MF", data, recipe, seed=seed, out=folder, progress=False)
        model, density = run.model(), run.history[-1]["density"]
    p = predict(model, data.x_test, mode=WeightMode.MEDIAN_MEAN)
    draws = log_prob_draws(
        model, data.x_test, data.y_test, mode=WeightMode.MEDIAN, samples=50,
        generator=torch.Generator().manual_seed(seed),
    )
    return density, _score(data, p), metrics.nll_of_draws(draws)


def _score(data: Dataset, p: torch.Tensor) -> float:
    if data.n_classes is None:
        return metrics.rmse(p, data.y_test.reshape(p.shape))
    return metrics.accuracy(p, data.y_test)


def _sklearn(data: Dataset, model: str, seed: int) -> tuple[float, float]:
    x, y, x_test, y_test = (t.numpy() for t in (data.x_train, data.y_train, data.x_test, data.y_test))
    numbers = data.n_classes is None
    early = {"hidden_layer_sizes": (100, 100), "early_stopping": True, "max_iter": 2000, "random_state": seed}
    fitted: Any
    if model == "linear":
        logistic = LogisticRegressionCV(Cs=10, cv=3, max_iter=2000)
        fitted = RidgeCV(np.logspace(-3, 4, 15)) if numbers else logistic
    else:
        fitted = MLPRegressor(**early) if numbers else MLPClassifier(**early)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit(x, y)
    if not numbers:
        p = torch.tensor(fitted.predict_proba(x_test))
        return metrics.accuracy(p, data.y_test), metrics.nll(p, data.y_test)
    errors = fitted.predict(x_test) - y_test
    variance = float(np.square(fitted.predict(x) - y).mean())
    nll = 0.5 * (math.log(2.0 * math.pi * variance) + float(np.square(errors).mean()) / variance)
    return float(np.sqrt(np.square(errors).mean())), nll


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


def summary() -> None:
    print("data            model          splits  score            nll")
    for name in DATA:
        for model in MODELS:
            rows = [r for r in read() if (r["data"], r["model"]) == (name, model)]
            if rows:
                scores, nlls = ([float(r[key]) for r in rows] for key in ("score", "nll"))
                error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
                print(
                    f"{name:15} {model:14} {len(rows):6}  {statistics.mean(scores):.4f} +- {error:.4f}  "
                    f"{statistics.mean(nlls):.4f}"
                )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=lambda s: s.split(","), default=list(DATA))
    parser.add_argument("--model", type=lambda s: s.split(","), default=list(MODELS))
    parser.add_argument("--splits", type=lambda s: [int(v) for v in s.split(",")], default=list(range(10)))
    parser.add_argument("--hidden", type=lambda s: tuple(map(int, s.split("-"))), default=(100, 100))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    if arguments.summary:
        summary()
        return
    torch.set_num_threads(arguments.threads)
    for split in arguments.splits:
        for name in arguments.data:
            for model in arguments.model:
                known = {(r["data"], r["model"], r["split"]) for r in read()}
                if (name, model, str(split)) not in known:
                    row = measure(name, model, split, arguments.hidden)
                    write([*read(), row])
                    print(", ".join(f"{k} {v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
