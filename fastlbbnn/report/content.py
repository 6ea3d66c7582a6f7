"""What a report says: figures, tables and sentences, computed from a run and its data."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import metrics, plots
from ..data import Dataset
from ..evaluation import evaluate_run
from ..likelihoods import as_likelihood
from ..methods import Prediction
from ..nn.linear import BayesianLinear
from ..prediction import predict
from ..structure import chain, inclusion_of_weights, kept_weights, structure_of
from ..training import Run
from ..uncertainty import class_probabilities, entropy_parts
from .words import GAMMAS, STAGES, headline, prediction_rows, settings_rows, stage_rows

#: Single predictions that are shown of each data set, and wrong ones.
SHOWN, WRONG = 8, 16


@dataclass(frozen=True)
class Figure:
    """An image inside the page, what it shows to those who do not see it, and how to read it."""

    source: str
    alt: str
    caption: str
    #: Too wide to be legible on a phone's screen without scrolling.
    wide: bool


@dataclass
class Section:
    id: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    #: Tables as headings and rows of text.
    tables: list[dict[str, Any]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


def gather(run: Run, dataset: Dataset, *, other: Dataset | None, samples: int, seed: int) -> dict[str, Any]:
    """Everything that the page's template needs."""
    results = run.results or evaluate_run(run, dataset)
    stage = run.stages[0]
    network = run.model(stage)
    sections = [_predictions(results, dataset), _training(run), _structure(network, dataset)]
    if dataset.classes is not None:
        seen = _Seen(run, network, dataset, samples, seed)
        sections += [_calibration(seen), _single(seen), _wrong(seen), _foreign(seen, other)]
    else:
        sections.append(_numbers(network, run, dataset, samples, seed))
    sections.append(_settings(run))
    return {
        "title": f"{run.config['method']} on {dataset.name}",
        "method": run.method.summary,
        "status": run.config["status"],
        "seed": run.config["seed"],
        "recipe": run.config["recipe"],
        "sizes": "-".join(map(str, run.config["sizes"])),
        "dataset": dataset,
        **headline(results, run, network),
        "sections": [s for s in sections if s is not None],
    }


def figure(drawing: Any, alt: str, caption: str) -> Figure:
    data = base64.b64encode(plots.as_bytes(drawing, "png", dpi=140)).decode()
    return Figure(f"data:image/png;base64,{data}", alt, caption, drawing.get_figwidth() > 5.0)


# --- sections -------------------------------------------------------------------------------------


def _predictions(results: dict[str, Any], dataset: Dataset) -> Section:
    section = Section("predictions", "Predictions")
    section.text.append(
        f"Every way to predict, on {results['n_test']} {dataset.held_out} rows. A row is named as in the "
        "paper, by what stands in for the indicators (gamma) and for the weights (beta)."
    )
    for stage in dict.fromkeys(row["stage"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["stage"] == stage]
        section.tables.append({"caption": STAGES.get(stage, stage), **prediction_rows(rows)})
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
            "One point an epoch; numbers above the axes are the stages. The evidence lower bound is the "
            "log-likelihood minus the KL's share of an observation. The first twentieth of the epochs may "
            "lie outside an axis.",
        )
    )
    section.tables.append(stage_rows(history))
    return section


def _structure(network: nn.Module, dataset: Dataset) -> Section:
    found = structure_of(network)
    layers = [layer for layer, _ in chain(network)]
    section = Section("structure", "Structure")
    latent = [layer for layer in layers if isinstance(layer, BayesianLinear) and layer.inclusion is not None]
    rows = [
        [str(i + 1), f"{layer.in_features} to {layer.out_features}", f"{s.weights:,}",
         f"{s.mean_inclusion:.4f}",
         f"{s.kept:,} ({100 * s.density:.2f} %)", f"{s.active:,} ({100 * s.active_density:.2f} %)"]
        for i, (layer, s) in enumerate(zip(layers, found.layers))
    ]  # fmt: skip
    rows.append(
        [
            "all",
            "",
            f"{found.weights:,}",
            "",
            f"{found.kept:,} ({100 * found.density:.2f} %)",
            f"{found.active:,} ({100 * found.active_density:.2f} %)",
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
                "Histograms of inclusion probabilities, one a layer",
                "Posterior probabilities that a weight is in the network. Those above 0.5 (red) make the "
                "median probability model. The vertical axis is logarithmic.",
            )
        )
    used = int(found.used_inputs.sum())
    if found.kept < found.weights:
        counts = kept_weights(layers[0]).sum(0) * found.used_inputs
        section.figures.append(
            figure(
                plots.used_inputs({"sparse model": counts}, input_shape=dataset.input_shape),
                f"{used} of {dataset.inputs} inputs are used",
                "Weights of the first layer that the sparse model keeps at each input. Blank inputs have no "
                "path to an output: the model never looks at them.",
            )
        )
    if not found.is_connected:
        section.text.append(
            "The median model has no path from an input to an output: its outputs are constants. "
            "`fastlbbnn select` finds the closest threshold that connects it."
        )
    else:
        section.text.append(f"{used} of {dataset.inputs} inputs have a path to an output.")
    return section


class _Seen:
    """Draws of class probabilities for the test rows, by every mode that the page compares."""

    def __init__(self, run: Run, network: nn.Module, dataset: Dataset, samples: int, seed: int) -> None:
        self.run, self.network, self.dataset = run, network, dataset
        self.samples, self.seed = samples, seed
        first = run.method.predictions[0]
        sparse = next((p for p in run.method.predictions if p.gamma in ("MED", "PRN")), None)
        self.predictions = [first] if sparse is None else [first, sparse]
        self.draws = {p: self.draw(p, dataset.x_test) for p in self.predictions}
        self.y = dataset.y_test.reshape(-1).long()

    def draw(self, prediction: Prediction, x: Tensor) -> Tensor:
        """Class probabilities [draws, n, classes]."""
        generator = torch.Generator().manual_seed(self.seed)
        p = predict(
            self.network,
            x,
            mode=prediction.mode,
            samples=self.samples,
            average=False,
            generator=generator,
            transform=as_likelihood(self.dataset.likelihood).mean,
        )
        return class_probabilities(p)

    @property
    def draws_text(self) -> str:
        count = next(iter(self.draws.values())).shape[0]
        return f"{count} draws of the network" if count > 1 else "the network's one prediction"


def describe(prediction: Prediction) -> str:
    names = {"SIM": "model averaging", "ALL": "all weights", "MED": "median model", "PRN": "pruned"}
    return f"{names[prediction.gamma]} ({prediction.gamma} {prediction.beta})"


def _calibration(seen: _Seen) -> Section:
    panels = {describe(p): metrics.calibration(draws.mean(0), seen.y) for p, draws in seen.draws.items()}
    section = Section("calibration", "Calibration")
    section.figures.append(
        figure(
            plots.reliability_diagram(panels),
            "Accuracy against confidence",
            f"Above: accuracy of the predictions of each confidence (the largest probability averaged over "
            f"{seen.draws_text}); calibrated predictions lie on the diagonal. Below: how often each "
            "confidence occurs. ECE is the mean distance from the diagonal.",
        )
    )
    return section


def _examples(x: Tensor, draws: Tensor, rows: Sequence[int], y: Tensor | None) -> list[plots.Example]:
    return [plots.Example.of(x[i], draws[:, i], None if y is None else int(y[i])) for i in rows]


def _single(seen: _Seen) -> Section:
    dataset, prediction = seen.dataset, seen.predictions[0]
    rows = range(min(SHOWN, dataset.n_test))
    drawing = plots.predictive_bars(
        {
            f"{dataset.name}, {dataset.held_out} rows": _examples(
                dataset.x_test, seen.draws[prediction], rows, seen.y
            )
        },
        input_shapes={f"{dataset.name}, {dataset.held_out} rows": dataset.input_shape},
        class_names=dataset.class_names,
    )
    section = Section("single", "Single predictions")
    section.figures.append(
        figure(
            drawing,
            "Votes and averaged class probabilities of the first test rows",
            f"The first {len(rows)} {dataset.held_out} rows, {describe(prediction)}. Bars: share of "
            f"{seen.draws_text} that vote for a class. Yellow lines: class probabilities averaged. Above the "
            "dashed line the network decides, below it doubts.",
        )
    )
    return section


def _wrong(seen: _Seen) -> Section:
    dataset, prediction = seen.dataset, seen.predictions[0]
    draws = seen.draws[prediction]
    average = draws.mean(0)
    wrong = (average.argmax(-1) != seen.y).nonzero().flatten().tolist()
    section = Section("wrong", "Wrong predictions")
    if not wrong:
        section.text.append("No test row is classified wrongly.")
        return section
    doubted = int((average[wrong].amax(-1) < metrics.DOUBT_THRESHOLD).sum())
    section.text.append(
        f"{len(wrong)} of {dataset.n_test} rows are classified wrongly; with the doubt option {doubted} of "
        "them would have been doubts."
    )
    section.figures.append(
        figure(
            plots.misclassified(
                _examples(dataset.x_test, draws, wrong[:WRONG], seen.y),
                input_shape=dataset.input_shape,
                class_names=dataset.class_names,
            ),
            "Votes and averaged class probabilities of wrongly classified rows",
            f"The first {min(WRONG, len(wrong))} of them. Green: votes for the true class; red: for the "
            "class that was predicted.",
        )
    )
    return section


def _foreign(seen: _Seen, other: Dataset | None) -> Section:
    section = Section("foreign", "Out of domain")
    if other is None:
        section.text.append(
            "No second data set was given. With one of as many inputs (`fastlbbnn report RUN --other DATA`) "
            "this section shows whether the network doubts what it was not made for."
        )
        return section
    dataset = seen.dataset
    foreign = {p: seen.draw(p, other.x_test) for p in seen.predictions}
    panels, rows = {}, []
    for prediction, draws in seen.draws.items():
        inside, outside = entropy_parts(draws), entropy_parts(foreign[prediction])
        panels[describe(prediction)] = {dataset.name: inside.total, other.name: outside.total}
        sure = [
            f"{100 * (d.mean(0).amax(-1) >= metrics.DOUBT_THRESHOLD).double().mean().item():.1f} %"
            for d in (draws, foreign[prediction])
        ]
        rows.append(
            [
                describe(prediction),
                f"{inside.total.mean():.3f}",
                f"{outside.total.mean():.3f}",
                f"{metrics.auroc(inside.total, outside.total):.4f}",
                f"{metrics.auroc(inside.mutual_information, outside.mutual_information):.4f}",
                *sure,
            ]
        )
    section.figures.append(
        figure(
            plots.entropy_ecdfs(panels, classes=dataset.classes),
            "Distribution functions of entropies",
            f"Entropies of predictions for {dataset.name}, which the network was trained on, and "
            f"{other.name}, which it was not; averaged over {seen.draws_text}. The further right the curve "
            f"of {other.name}, the more the network doubts it; at the dotted line all classes are equally "
            "probable.",
        )
    )
    section.tables.append(
        {
            "caption": f"{dataset.name} against {other.name}",
            "head": [
                "prediction",
                f"mean entropy, {dataset.name}",
                f"mean entropy, {other.name}",
                "AUROC of entropy",
                "AUROC of mutual information",
                f"decided, {dataset.name}",
                f"decided, {other.name}",
            ],
            "rows": rows,
        }
    )
    bars = {
        f"{dataset.name}: in domain": _examples(
            dataset.x_test, seen.draws[seen.predictions[0]], range(min(SHOWN, dataset.n_test)), seen.y
        ),
        f"{other.name}: out of domain": _examples(
            other.x_test, foreign[seen.predictions[0]], range(min(SHOWN, other.n_test)), None
        ),
    }
    shapes = dict(zip(bars, (dataset.input_shape, other.input_shape)))
    section.figures.append(
        figure(
            plots.predictive_bars(bars, input_shapes=shapes, class_names=dataset.class_names),
            "Votes and averaged class probabilities in and out of domain",
            "As above, for both data sets. Out of domain no class is right.",
        )
    )
    return section


def _numbers(network: nn.Module, run: Run, dataset: Dataset, samples: int, seed: int) -> Section:
    """Regression and counts: predicted against observed."""
    draws = predict(
        network,
        dataset.x_test,
        mode=run.method.predictions[0].mode,
        samples=samples,
        average=False,
        transform=as_likelihood(dataset.likelihood).mean,
        generator=torch.Generator().manual_seed(seed),
    )
    mean = draws.mean(0)
    several = len(draws) > 1
    tail = torch.tensor([0.025, 0.975], dtype=draws.dtype)
    lower, upper = torch.quantile(draws, tail, dim=0) if several else (None, None)
    section = Section("numbers", "Predicted and observed")
    section.text.append(f"Root mean squared error {metrics.rmse(mean, dataset.y_test):.4g}.")
    for column in range(mean.shape[-1]):
        y = dataset.y_test if dataset.y_test.dim() == 1 else dataset.y_test[:, column]
        limits = (lower[..., column], upper[..., column]) if several else (None, None)
        section.figures.append(
            figure(
                plots.observed_against_predicted(y, mean[..., column], *limits),
                "Observed against predicted numbers",
                "Each point is a row of the test data. Lines are 95 % credible intervals of its expectation: "
                "what the network does not know about it; the noise of single observations is not in them.",
            )
        )
    return section


def _settings(run: Run) -> Section:
    section = Section("settings", "Settings and versions")
    section.tables += settings_rows(run)
    if run.recipe.notes:
        section.text.append(run.recipe.notes)
    if run.config.get("seconds") is not None and math.isfinite(run.config["seconds"]):
        section.text.append(f"Training took {run.config['seconds']:.1f} s.")
    return section
