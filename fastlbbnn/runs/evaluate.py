"""The rows of the paper's tables for a trained network.

For every way to predict that the method has, on the test data:

    R = 1    one draw of the network: the mean accuracy of the R draws, each on its own
    R = 10   the averaged probabilities of the R draws

with the accuracy, the accuracy and the count of observations where the largest averaged probability is at
least 0.95 (the doubt option), and the density: the share of the weights that the prediction uses. Numbers
instead of classes have a root mean squared error, the mean negative log predictive density and the share of
observations within their 95 % predictive intervals, all in the units of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._util.files import write_json
from .._util.lock import folder_lock
from ..data import Dataset
from ..nn.layer import bayesian_layers
from ..nn.modes import WeightMode
from ..prediction import metrics
from ..prediction.predict import log_prob_draws, predict, predict_interval
from ..structure.density import density
from ..structure.histogram import InclusionCounts
from ..structure.paths import chain, has_indicators, inclusion_of_weights, layer_structure, structure_of
from .baseline import constant_figures
from .methods import Method, Prediction
from .pruning import weight_density
from .run import Results, Run


def evaluate_run(run: Run, dataset: Dataset, *, samples: int = 10, seed: int = 0) -> Results:
    """Evaluate every saved network of a run, write ``results.json``, return its content.

    FolderBusy where a process trains in the folder: its networks are about to change.
    """
    with folder_lock(run.folder):
        return evaluate_networks(run, dataset, samples=samples, seed=seed)


def evaluate_networks(run: Run, dataset: Dataset, *, samples: int = 10, seed: int = 0) -> Results:
    """The same, for callers that hold the folder's lock."""
    rows: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    for name in run.networks:
        model = run.model(name)
        found = evaluate(model, run.method, dataset, samples=samples, seed=seed, network=name)
        rows += [{"network": name, **row} for row in found]
        layers += [{"network": name, **r} for r in layer_rows(model, run.method.median_threshold(model))]
    results: Results = {
        "rows": rows, "layers": layers, "constant": constant_figures(dataset), "n_test": dataset.n_test,
        "samples": samples, "seed": seed,
    }
    write_json(run.folder / "results.json", results)
    return results


def evaluate(
    model: nn.Module,
    method: Method,
    dataset: Dataset,
    *,
    samples: int = 10,
    seed: int = 0,
    network: str = "trained",
) -> list[dict[str, Any]]:
    """One row per prediction and number of draws.

    The likelihood is the one that ``model`` states.
    In the ``network`` "post-median" only the selected model was trained: others are left out.

    A median model without a path from an input to an output would be a constant: its rows are those of
    the nearest threshold that connects it, and say so ("threshold").
    """
    threshold = method.median_threshold(model)
    rows = []
    for prediction in method.predictions:
        if network == "post-median" and prediction.gamma not in ("MED", "PRN"):
            continue
        rows += _rows_of(model, prediction, dataset, samples, seed, threshold)
    return rows


def no_path_note(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """What to say about rows of median models that are at another threshold than 0.5; None: nothing."""
    used = {row["threshold"] for row in rows if row.get("threshold", 0.5) != 0.5}
    if not used:
        return None
    lowest, highest = (f"{value:.4g}" for value in (min(used), max(used)))
    return (
        "Where the median model has no path from an input to an output, its predictions would be constants: "
        "rows of MED then keep weights with an inclusion probability above "
        + (lowest if lowest == highest else f"{lowest} to {highest}")
        + ", the closest threshold with a path, instead of 0.5."
    )


def _rows_of(
    model: nn.Module,
    prediction: Prediction,
    dataset: Dataset,
    samples: int,
    seed: int,
    threshold: float,
) -> list[dict[str, Any]]:
    mode = prediction.mode
    how: dict[str, Any] = {"mode": mode, "samples": samples, "threshold": threshold}
    draws = predict(
        model, dataset.x_test, **how, average=False, generator=torch.Generator().manual_seed(seed)
    )
    about: dict[str, Any] = {"gamma": prediction.gamma, "beta": prediction.beta}
    if mode in (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN):
        about["threshold"] = threshold
    rows = []
    if mode.random and samples > 1:
        each = [_figures(draw, dataset) for draw in draws]
        # The doubt option is for averaged predictions, as in the paper's tables.
        single = {k: sum(f[k] for f in each) / len(each) for k in each[0] if not k.endswith("_at_095")}
        rows.append({**about, "R": 1, **single, "density": _density(model, prediction, threshold, 1)})
    averaged = _figures(draws.mean(0), dataset)
    if dataset.n_classes is None:
        averaged |= _figures_of_numbers(model, dataset, how, seed)
    rows.append({
        **about, "R": len(draws), **averaged, "density": _density(model, prediction, threshold, len(draws)),
    })
    return rows


def _figures(p: Tensor, dataset: Dataset) -> dict[str, Any]:
    """``p``: [n, outputs], probabilities, or means of the response."""
    y = dataset.y_test
    if dataset.n_classes is None:
        return {"rmse": metrics.rmse(dataset.in_units(p), dataset.in_units(y))}
    sure = metrics.doubt_accuracy(p, y)
    return {
        "accuracy": metrics.accuracy(p, y),
        "accuracy_at_095": None if math.isnan(sure.accuracy) else sure.accuracy,
        "classified_at_095": sure.count,
        "nll": metrics.nll(p, y),
        "ece": metrics.ece(p, y),
    }


def _figures_of_numbers(
    model: nn.Module, dataset: Dataset, how: Mapping[str, Any], seed: int
) -> dict[str, float]:
    x, y = dataset.x_test, dataset.y_test
    nll = metrics.nll_of_draws(
        log_prob_draws(model, x, y, **how, generator=torch.Generator().manual_seed(seed))
    )
    scale = dataset.preparation.target.scale
    if scale is not None:
        # A density of y = mean + scale t is that of t over the scale.
        nll += sum(map(math.log, scale))
    _, lower, upper = predict_interval(
        model, x, level=0.95, of="response", **how, generator=torch.Generator().manual_seed(seed)
    )
    y = y.reshape(lower.shape)
    return {"nll": nll, "coverage": ((y >= lower) & (y <= upper)).double().mean().item()}


def _density(model: nn.Module, prediction: Prediction, threshold: float, samples: int) -> float:
    if not bayesian_layers(model):
        return weight_density(model)
    if prediction.gamma == "PRN":
        # A pruned unit takes the weights into it along: what is left is what is between units that are left.
        return structure_of(model).active_density
    return density(model, prediction.mode, threshold, samples)


def layer_rows(model: nn.Module, threshold: float = 0.5) -> list[dict[str, Any]]:
    """Mean inclusion probability and densities per layer; for latent binary layers also a histogram.

    The histogram is there so that it can be drawn where the network is not kept.
    """
    rows = []
    for i, (found, (layer, _)) in enumerate(zip(layer_structure(model, threshold), chain(model))):
        row: dict[str, Any] = {
            "layer": i + 1, "weights": found.weights, "mean_inclusion": found.mean_inclusion,
            "density": found.density, "active_density": found.active_density,
        }
        if has_indicators(layer):
            counts = InclusionCounts.of(inclusion_of_weights(layer))
            row |= {"inclusion_counts": list(counts.counts), "above_half": counts.above_half}
        rows.append(row)
    return rows
