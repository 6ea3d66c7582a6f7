"""Sections about class probabilities: calibration, single and wrong predictions, another domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..data import Dataset
from ..prediction import metrics
from ..prediction.predict import predict
from ..prediction.uncertainty import class_probabilities, entropy_parts
from ..runs import Run
from ..runs.methods import Prediction
from ..structure.thresholds import resolve_threshold
from . import plots
from .parts import Section, figure

#: Single predictions that are shown of each data set, and wrong ones.
SHOWN, WRONG = 8, 16
#: Values that stand for a row of a table.
NAMED = 4


class Seen:
    """Draws of class probabilities for the test rows, by every mode that the page compares."""

    def __init__(self, run: Run, network: nn.Module, dataset: Dataset, samples: int, seed: int) -> None:
        self.run, self.network, self.dataset = run, network, dataset
        self.samples, self.seed = samples, seed
        # As in the results: a median model without a path would be a constant.
        self.threshold = resolve_threshold(network, warn=False)
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
            threshold=self.threshold,
            average=False,
            generator=generator,
        )
        return class_probabilities(p)

    def words(self, x: Tensor) -> list[str]:
        """Rows of a table in words: the values that are furthest from the training rows' mean."""
        names = self.dataset.input_names
        if names is None:
            return []
        train = self.dataset.x_train
        far = ((x - train.mean(0)) / train.std(0).clamp(min=1e-12)).abs().argsort(descending=True)
        preparation = self.dataset.preparation
        values = x.tolist() if preparation.has_categories else preparation.raw(x[None].numpy())[0].tolist()
        return [f"{names[i]} {values[i]:.3g}" for i in far[:NAMED].tolist()]

    @property
    def words_explained(self) -> str:
        if self.dataset.input_names is None:
            return ""
        return f" Beside them the {NAMED} values of the row that are furthest from the mean of training."

    @property
    def draws_text(self) -> str:
        count = next(iter(self.draws.values())).shape[0]
        return f"{count} draws of the network" if count > 1 else "the network's one prediction"


def describe(prediction: Prediction) -> str:
    names = {"SIM": "model averaging", "ALL": "all weights", "MED": "median model", "PRN": "pruned"}
    return f"{names[prediction.gamma]} ({prediction.gamma} {prediction.beta})"


def calibration(seen: Seen) -> Section:
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


def _examples(
    seen: Seen, x: Tensor, draws: Tensor, rows: Sequence[int], y: Tensor | None
) -> list[plots.Example]:
    return [
        plots.Example.of(x[i], draws[:, i], None if y is None else int(y[i]), seen.words(x[i])) for i in rows
    ]


def single(seen: Seen) -> Section:
    dataset, prediction = seen.dataset, seen.predictions[0]
    rows = range(min(SHOWN, dataset.n_test))
    drawing = plots.predictive_bars(
        {
            f"{dataset.name}, {dataset.held_out} rows": _examples(
                seen, dataset.x_test, seen.draws[prediction], rows, seen.y
            )
        },
        input_shapes={f"{dataset.name}, {dataset.held_out} rows": dataset.input_shape},
        class_names=dataset.class_names,
    )
    section = Section("single", "Single predictions")
    section.figures.append(
        figure(
            drawing,
            f"Votes and averaged class probabilities of the first {dataset.held_out} rows",
            f"The first {len(rows)} {dataset.held_out} rows, {describe(prediction)}. Bars: share of "
            f"{seen.draws_text} that vote for a class. Yellow lines: class probabilities averaged. Where a "
            "yellow line is above the dashed one the network decides, else it doubts."
            + seen.words_explained,
        )
    )
    return section


def wrong_rows(seen: Seen) -> Section:
    dataset, prediction = seen.dataset, seen.predictions[0]
    draws = seen.draws[prediction]
    average = draws.mean(0)
    wrong = (average.argmax(-1) != seen.y).nonzero().flatten().tolist()
    section = Section("wrong", "Wrong predictions")
    if not wrong:
        section.text.append(f"No {dataset.held_out} row is classified wrongly.")
        return section
    doubted = int((average[wrong].amax(-1) < metrics.DOUBT_THRESHOLD).sum())
    section.text.append(
        f"{len(wrong)} of {dataset.n_test} rows are classified wrongly; with the doubt option {doubted} of "
        "them would have been doubts."
    )
    section.figures.append(
        figure(
            plots.misclassified(
                _examples(seen, dataset.x_test, draws, wrong[:WRONG], seen.y),
                input_shape=dataset.input_shape,
                class_names=dataset.class_names,
            ),
            "Votes and averaged class probabilities of wrongly classified rows",
            f"The first {min(WRONG, len(wrong))} of them. Green: votes for the true class; red: for the "
            "class that was predicted.",
        )
    )
    return section


def foreign_rows(seen: Seen, other: Dataset | None) -> Section:
    section = Section("foreign", "Out of domain")
    if other is None:
        section.text.append(
            "No second data set was given. With one of the same number of inputs (`fastlbbnn report RUN "
            "--other DATA`) this section shows whether the network doubts what it was not made for."
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
            plots.entropy_ecdfs(panels, classes=int(dataset.n_classes or 0)),
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
            seen, dataset.x_test, seen.draws[seen.predictions[0]], range(min(SHOWN, dataset.n_test)), seen.y
        ),
        f"{other.name}: out of domain": _examples(
            seen, other.x_test, foreign[seen.predictions[0]], range(min(SHOWN, other.n_test)), None
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
