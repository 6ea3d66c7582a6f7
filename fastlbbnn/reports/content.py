"""What a report says: figures, tables and sentences, computed from a run and its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..data import Dataset
from ..nn.linear import BayesianLinear
from ..prediction import metrics
from ..prediction.predict import predict_interval
from ..runs import Run
from ..runs.baseline import constant_warnings
from ..runs.evaluate import evaluate_run, no_path_note
from ..structure.paths import chain, inclusion_of_weights, kept_weights, structure_of
from ..structure.thresholds import resolve_threshold
from . import plots
from .columns import STAGES, prediction_columns, stage_rows
from .parts import Section, figure
from .plots.structure import MOST_NAMES
from .uncertain import Seen, calibration, foreign_rows, single, wrong_rows
from .words import GAMMAS, NETWORKS, headline, notes_on, settings_rows, table_of


def gather(run: Run, dataset: Dataset, *, other: Dataset | None, samples: int, seed: int) -> dict[str, Any]:
    """Everything that the page's template needs."""
    results = run.results or evaluate_run(run, dataset)
    network = run.model(run.networks[0])
    sections = [_predictions(results, dataset), _training(run), _structure(network, dataset)]
    if dataset.n_classes is not None:
        seen = Seen(run, network, dataset, samples, seed)
        sections += [calibration(seen), single(seen), wrong_rows(seen), foreign_rows(seen, other)]
    else:
        sections.append(_numbers(network, run, dataset, samples, seed))
    sections.append(_settings(run))
    return {
        "title": f"{run.config['method']} on {dataset.name}",
        "method": run.method.summary,
        "status": run.config["status"],
        "seed": run.config["seed"],
        "recipe": run.recipe.name,
        "warnings": constant_warnings(results, dataset.held_out),
        "sizes": "-".join(map(str, run.config["sizes"])),
        "dataset": dataset,
        **headline(results, run, network, dataset.held_out),
        "sections": [s for s in sections if s is not None],
    }


# --- sections -------------------------------------------------------------------------------------


def _predictions(results: Mapping[str, Any], dataset: Dataset) -> Section:
    section = Section("predictions", "Predictions")
    section.text.append(
        f"Every way to predict, on {results['n_test']} {dataset.held_out} rows. A row is named as in the "
        "paper, by what stands in for the indicators (gamma) and for the weights (beta)."
    )
    for network in dict.fromkeys(row["network"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["network"] == network]
        columns = prediction_columns(rows, "network")
        section.tables.append(table_of(NETWORKS.get(network, network), rows, columns))
    note = no_path_note(results["rows"])
    if note is not None:
        section.text.append(note)
    used = {row["gamma"] for row in results["rows"]}
    section.tables.append(
        {
            "caption": "What the names mean",
            "head": ["name", "meaning"],
            "rows": [
                *([name, text] for name, text in GAMMAS.items() if name.removeprefix("gamma ") in used),
                ["beta SIM", "the weights are drawn from their posterior"],
                ["beta MEA", "the weights are their posterior means"],
                ["R", "draws whose predictions are averaged; at R = 1 the mean over single draws"],
                [
                    "decided",
                    "predictions whose largest averaged probability is at least 0.95; the rest are doubts",
                ],
                ["density", "share of the weights (biases apart) that the prediction uses"],
            ],
        }
    )
    return section


def _training(run: Run) -> Section | None:
    history = run.history
    if not history:
        return None
    section = Section("training", "Training")
    section.figures.append(
        figure(
            plots.training_curves(history),
            "Bound, KL, structure and accuracy over the epochs",
            "One point per epoch; numbers above the axes are the stages. The evidence lower bound is the "
            "log-likelihood minus the KL's share per observation. The first twentieth of the epochs may "
            "lie outside an axis.",
        )
    )
    section.tables.append(table_of("Stages, with the last epoch's values", stage_rows(history), STAGES))
    return section


def _structure(network: nn.Module, dataset: Dataset) -> Section:
    threshold = resolve_threshold(network, warn=False)
    found = structure_of(network, threshold)
    layers = [layer for layer, _ in chain(network)]
    section = Section("structure", "Structure")
    latent = [layer for layer in layers if isinstance(layer, BayesianLinear) and layer.inclusion is not None]
    rows = [
        [str(i + 1), f"{layer.in_features} to {layer.out_features}", f"{s.weights:,}",
         f"{s.mean_inclusion:.4f}",
         f"{s.kept:,} ({100 * s.density:.3g} %)", f"{s.active:,} ({100 * s.active_density:.3g} %)"]
        for i, (layer, s) in enumerate(zip(layers, found.layers))
    ]  # fmt: skip
    rows.append(
        [
            "all",
            "",
            f"{found.weights:,}",
            "",
            f"{found.kept:,} ({100 * found.density:.3g} %)",
            f"{found.active:,} ({100 * found.active_density:.3g} %)",
        ]
    )
    section.tables.append(
        {
            "caption": "Weights of each layer, biases apart",
            "head": ["layer", "units", "weights", "mean inclusion", "kept by the sparse model", "on a path"],
            "rows": rows,
        }
    )
    if latent:
        drawing = plots.inclusion_histograms({"": [inclusion_of_weights(layer) for layer in latent]})
        section.figures.append(
            figure(
                drawing,
                "Histograms of inclusion probabilities, one per layer",
                "Posterior probabilities that a weight is in the network. Those above 0.5 (red) make the "
                "median probability model. The vertical axis is logarithmic.",
            )
        )
    used = int(found.used_inputs.sum())
    if found.kept < found.weights:
        counts = kept_weights(layers[0], threshold).sum(0) * found.used_inputs
        section.figures.append(
            figure(
                plots.used_inputs(
                    {"sparse model": counts}, input_shape=dataset.input_shape, names=dataset.input_names
                ),
                f"{used} of {dataset.inputs} inputs are used",
                "Weights of the first layer that the sparse model keeps at each input. Blank inputs have no "
                "path to an output: the model never looks at them.",
            )
        )
    if threshold != 0.5:
        section.text.append(
            "The median model has no path from an input to an output: its outputs would be constants. "
            f"Everything about sparse models here is at threshold {threshold:.6g}, the closest with a path."
        )
    elif not found.is_connected:
        section.text.append(
            "No path leads from an input to an output: the sparse model's outputs are constants."
        )
    text = f"{used} of {dataset.inputs} inputs have a path to an output"
    if dataset.input_names is not None and 0 < used <= MOST_NAMES:
        text += ": " + ", ".join(n for n, is_used in zip(dataset.input_names, found.used_inputs) if is_used)
    section.text.append(f"{text}.")
    return section


def _numbers(network: nn.Module, run: Run, dataset: Dataset, samples: int, seed: int) -> Section:
    """Regression and counts: predicted against observed."""
    found = predict_interval(
        network,
        dataset.x_test,
        level=0.95,
        of="response",
        mode=run.method.predictions[0].mode,
        samples=samples,
        generator=torch.Generator().manual_seed(seed),
    )
    mean, lower, upper = (dataset.in_units(values) for values in found)
    y = dataset.in_units(dataset.y_test).reshape(mean.shape)
    constant = dataset.in_units(dataset.y_train).reshape(-1, mean.shape[-1]).mean(0).expand_as(y)
    covered = ((y >= lower) & (y <= upper)).double().mean().item()
    section = Section("numbers", "Predicted and observed")
    section.text.append(
        f"Root mean squared error {metrics.rmse(mean, y):.4g} (the mean of the training rows, a "
        f"constant, has {metrics.rmse(constant, y):.4g}); {100 * covered:.1f} % of the {dataset.held_out} rows "
        "lie in their 95 % intervals."
    )
    for column in range(mean.shape[-1]):
        limits = (lower[:, column], upper[:, column])
        section.figures.append(
            figure(
                plots.observed_against_predicted(y[:, column], mean[:, column], *limits),
                "Observed against predicted numbers",
                f"Each point is a {dataset.held_out} row, its line the 95 % interval of a new observation: "
                "what the network does not know, and the noise.",
            )
        )
    return section


def _settings(run: Run) -> Section:
    section = Section("settings", "Settings and versions")
    section.tables += settings_rows(run)
    notes = notes_on(run.recipe.notes, run.config["dataset"])
    if notes:
        section.text.append(notes)
    if run.config.get("seconds") is not None and math.isfinite(run.config["seconds"]):
        section.text.append(f"Training took {run.config['seconds']:.1f} s.")
    return section
