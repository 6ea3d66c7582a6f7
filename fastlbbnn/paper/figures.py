"""The figures of an experiment, each with the numbers that it shows as CSV."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..prediction import metrics
from ..prediction.uncertainty import entropy_parts
from ..reports import plots
from ..runs import load_run
from ..structure.histogram import InclusionCounts
from .context import Context, Part, full_prediction, sparse_prediction
from .jobs import dataset_label
from .tables import Row, markdown, number, recipe_name, summarise, write_csv

#: Single images that are shown of each data set; wrongly classified ones.
SHOWN, WRONG = 10, 16
#: Numbers of samples at which accuracies are compared.
SAMPLE_COUNTS = (1, 2, 3, 5, 10, 20, 50, 100)


def image(ctx: Context, path: Any, caption: str) -> str:
    return f"![{caption}]({path.relative_to(ctx.settings.out).as_posix()})\n\n{caption}\n"


def histograms(ctx: Context) -> Part:
    text, files = [], []
    for recipe in ctx.recipes:
        columns: dict[str, list[Tensor | InclusionCounts]] = {}
        for dataset in ctx.datasets:
            for job in ctx.first_jobs(dataset, recipe):
                layers = [row for row in ctx.results(job).layers if row["network"] == "trained"]
                if job.recipe != recipe or not all("inclusion_counts" in row for row in layers):
                    continue
                columns[f"{job.method}, {job.dataset_name}"] = [
                    InclusionCounts(row["inclusion_counts"], row["mean_inclusion"], row["above_half"])
                    for row in layers
                ]
        if not columns:
            continue
        path = plots.save(plots.inclusion_histograms(columns), ctx.folder / f"histograms-{recipe}.png")
        files.append(path)
        text.append(
            image(
                ctx, path, f"Inclusion probabilities of the weights, a row per layer; {recipe_name(recipe)}."
            )
        )
    return Part("Histograms of inclusion probabilities", "\n".join(text), tuple(files))


def _others(ctx: Context) -> dict[str, str]:
    """Data set -> the one that it is shown, the next of the experiment's."""
    names = ctx.datasets
    if len(names) < 2:
        return {}
    return {name: names[(i + 1) % len(names)] for i, name in enumerate(names)}


def foreign_entropies(ctx: Context) -> Part:
    """Entropies of predictions for data of another domain, by method, before and after post-training."""
    text, files = [], []
    # A method without a recipe of ours is in the figures of both: predicted once.
    seen: dict[tuple[Any, ...], Row | None] = {}
    for recipe in ctx.recipes:
        for after in (False, True):
            panels: dict[str, dict[str, Tensor]] = {}
            classes = 0
            for name, other in _others(ctx).items():
                series: dict[str, Tensor] = {}
                for job, run in ctx.first(name, recipe):
                    for sparse in (False, True):
                        place = (job, other, sparse, after)
                        if place not in seen:
                            seen[place] = _foreign(ctx, job, run, other, sparse, after)
                        if (found := seen[place]) is not None:
                            series[f"{job.method} S" if sparse else job.method] = found["entropies"]
                if series:
                    title = f"trained on {dataset_label(name)}, shown {dataset_label(other)}"
                    panels[title] = series
                    classes = ctx.dataset(name).n_classes or 0
            if panels:
                kind = "after-post-training" if after else "trained"
                drawing = plots.entropy_ecdfs(panels, classes=classes)
                path = plots.save(drawing, ctx.folder / f"entropies-{kind}-{recipe}.png")
                files.append(path)
                text.append(image(
                    ctx, path, f"Entropies out of domain, {kind.replace('after-', 'after ')}, "
                    f"{recipe_name(recipe)}. "
                    "The closer to the lower right corner, the less the network pretends to know. S: after "
                    "the method's own sparsification.",
                ))  # fmt: skip
    rows = [{k: v for k, v in row.items() if k != "entropies"} for row in seen.values() if row]
    table = write_csv(ctx.folder / "out-of-domain.csv", rows)
    head = ["trained on", "shown", "method", "recipe", "network", "gamma", "beta", "entropy in",
            "entropy out", "AUROC, entropy",
            "AUROC, mutual information", "decided in", "decided out"]  # fmt: skip
    body = [
        [r["dataset"], r["other"], r["method"], r["recipe"], r["network"], r["gamma"], r["beta"],
         *(number(r[k]) for k in ("entropy_in", "entropy_out", "auroc_entropy", "auroc_mutual_information",
                                  "decided_in", "decided_out"))]
        for r in rows
    ]  # fmt: skip
    return Part("Out of domain", "\n".join(text) + "\n" + markdown(head, body), (table, *files))


def _foreign(ctx: Context, job: Any, run: Any, other: str, sparse: bool, after: bool) -> Row | None:
    """One network's predictions for its own and for the other data; None where it has no such prediction."""
    prediction = sparse_prediction(job.method) if sparse else full_prediction(job.method)
    saved = "trained"
    if after:
        saved = "post-median" if sparse and "post-median" in run.networks else "post-trained"
    if prediction is None or saved not in run.networks:
        return None
    dataset, foreign = ctx.dataset(job.dataset), ctx.dataset(other)
    network = run.model(saved)
    inside = ctx.draws(network, prediction, dataset.x_test, dataset, ctx.settings.samples)
    outside = ctx.draws(network, prediction, foreign.x_test, dataset, ctx.settings.samples)
    parts_in, parts_out = entropy_parts(inside), entropy_parts(outside)

    def decided(draws: Tensor) -> float:
        return (draws.mean(0).amax(-1) >= metrics.DOUBT_THRESHOLD).double().mean().item()

    return {
        "dataset": job.dataset_name, "other": dataset_label(other), "method": job.method,
        "recipe": job.recipe, "seed": job.seed, "network": saved,
        "gamma": prediction.gamma, "beta": prediction.beta, "draws": len(inside),
        "entropy_in": parts_in.total.mean().item(), "entropy_out": parts_out.total.mean().item(),
        "auroc_entropy": metrics.auroc(parts_in.total, parts_out.total),
        "auroc_mutual_information": metrics.auroc(parts_in.mutual_information, parts_out.mutual_information),
        "decided_in": decided(inside), "decided_out": decided(outside), "entropies": parts_out.total,
    }  # fmt: skip


def foreign_examples(ctx: Context) -> Part:
    """Posterior-predictive bars of the first images of both domains."""
    text, files = [], []
    for recipe in ctx.recipes:
        for name, other in _others(ctx).items():
            for job, run in ctx.first(name, recipe, ("LBBNN-GP-MF",)):
                if job.recipe != recipe:
                    continue
                dataset, foreign = ctx.dataset(name), ctx.dataset(other)
                network, prediction = run.model("trained"), full_prediction(job.method)
                groups, shapes = {}, {}
                for title, data, known in (
                    (f"in domain: {dataset_label(name)}", dataset, True),
                    (f"out of domain: {dataset_label(other)}", foreign, False),
                ):
                    x = data.x_test[:SHOWN]
                    draws = ctx.draws(network, prediction, x, dataset, ctx.settings.figure_samples)
                    groups[title] = [
                        plots.Example.of(x[i], draws[:, i], int(data.y_test[i]) if known else None)
                        for i in range(len(x))
                    ]
                    shapes[title] = data.input_shape
                drawing = plots.predictive_bars(groups, input_shapes=shapes, class_names=dataset.class_names)
                path = plots.save(drawing, ctx.folder / f"examples-{dataset_label(name)}-{recipe}.png")
                files.append(path)
                text.append(image(
                    ctx, path, f"{job.method} trained on {dataset_label(name)}, {recipe_name(recipe)}: "
                    f"{ctx.settings.figure_samples} draws from the posterior predictive distribution.",
                ))  # fmt: skip
    return Part("Single predictions in and out of domain", "\n".join(text), tuple(files))


def misclassified(ctx: Context) -> Part:
    text, files, rows = [], [], []
    for recipe in ctx.recipes:
        for name in ctx.datasets:
            for job, run in ctx.first(name, recipe):
                if job.recipe != recipe:
                    continue
                dataset = ctx.dataset(name)
                prediction = full_prediction(job.method)
                draws = ctx.draws(
                    run.model("trained"), prediction, dataset.x_test, dataset, ctx.settings.figure_samples
                )
                y = dataset.y_test.reshape(-1).long()
                average = draws.mean(0)
                wrong = (average.argmax(-1) != y).nonzero().flatten()
                sure = int((average[wrong].amax(-1) >= metrics.DOUBT_THRESHOLD).sum())
                rows.append({
                    "dataset": job.dataset_name, "method": job.method, "recipe": job.recipe, "seed": job.seed,
                    "draws": len(draws), "rows": len(y), "wrong": len(wrong), "wrong_and_decided": sure,
                })  # fmt: skip
                if len(wrong) == 0:
                    continue
                examples = [
                    plots.Example.of(dataset.x_test[i], draws[:, i], int(y[i]))
                    for i in wrong[:WRONG].tolist()
                ]
                drawing = plots.misclassified(
                    examples, input_shape=dataset.input_shape, class_names=dataset.class_names,
                    title=f"{job.method} on {job.dataset_name}",
                )  # fmt: skip
                path = plots.save(
                    drawing, ctx.folder / f"misclassified-{job.dataset_name}-{job.method}-{recipe}.png"
                )
                files.append(path)
                text.append(image(
                    ctx, path, f"The first {len(examples)} of {len(wrong)} wrongly classified images of "
                    f"{job.dataset_name} ({job.method}, {recipe_name(recipe)}). Among all wrong ones {sure} "
                    "would have been decided at 0.95; the others are doubts.",
                ))  # fmt: skip
    table = write_csv(ctx.folder / "misclassified.csv", rows)
    return Part("Wrongly classified images", "\n".join(text), (table, *files))


def samples(ctx: Context) -> Part:
    """Accuracy of the average of the first R draws, R from 1 to 100."""
    counts = [r for r in SAMPLE_COUNTS if r <= ctx.settings.figure_samples]
    rows: list[Row] = []
    for job in ctx.done:
        dataset, network = ctx.dataset(job.dataset), load_run(job.folder).model("trained")
        for sparse, prediction in enumerate((full_prediction(job.method), sparse_prediction(job.method))):
            if prediction is None or not prediction.mode.random:
                continue
            draws = ctx.draws(network, prediction, dataset.x_test, dataset, max(counts))
            total = torch.zeros_like(draws[0])
            for r, draw in enumerate(draws, start=1):
                total += draw
                if r in counts:
                    accuracy = metrics.accuracy(total / r, dataset.y_test)
                    rows.append({
                        "dataset": job.dataset_name, "method": job.method, "recipe": job.recipe,
                        "seed": job.seed, "gamma": prediction.gamma, "beta": prediction.beta, "R": r,
                        "accuracy": accuracy, "label": f"{job.method} S" if sparse else job.method,
                    })  # fmt: skip
    table = write_csv(
        ctx.folder / "samples.csv", [{k: v for k, v in r.items() if k != "label"} for r in rows]
    )
    text, files = [], []
    for recipe in ctx.recipes:
        panels = {}
        for name in ctx.datasets:
            part = [r for r in rows if (r["dataset"], r["recipe"]) == (dataset_label(name), recipe)]
            panels[dataset_label(name)] = {
                label: (counts, _by_seed([r for r in part if r["label"] == label], "R", "accuracy"))
                for label in dict.fromkeys(r["label"] for r in part)
            }
        panels = {title: series for title, series in panels.items() if series}
        if panels:
            path = plots.save(plots.accuracy_against_samples(panels), ctx.folder / f"samples-{recipe}.png")
            files.append(path)
            text.append(
                image(
                    ctx, path, f"Accuracy of the average of R draws, {recipe_name(recipe)}. S: median model."
                )
            )
    return Part("Accuracy against the number of samples", "\n".join(text), (table, *files))


def _by_seed(rows: list[Row], x: str, y: str) -> np.ndarray:
    """[runs, points], the points in ascending order of ``x``."""
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return np.array([
        [row[y] if row[y] is not None else math.nan
         for row in sorted((r for r in rows if r["seed"] == seed), key=lambda r: r[x])]
        for seed in seeds
    ])  # fmt: skip


def width_study(ctx: Context) -> Part:
    """Accuracy, decisions and density against the width, full and sparse predictions side by side."""
    rows = []
    for row in ctx.rows():
        if row["network"] != "trained" or row["R"] != ctx.settings.samples:
            continue
        full, sparse = full_prediction(row["method"]), sparse_prediction(row["method"])
        sparse = sparse or full
        for which, prediction in (("full", full), ("sparse", sparse)):
            if (row["gamma"], row["beta"]) == (prediction.gamma, prediction.beta):
                rows.append({**row, "which": which})
    keys = ("dataset", "method", "source", "recipe", "which", "width")
    measures = ("accuracy", "accuracy_at_095", "classified_at_095", "density")
    table = write_csv(ctx.folder / "widths.csv", summarise(rows, keys, measures))
    text, files = [], []
    titles = {"full": "averaged over all that is unsure", "sparse": "sparse models"}
    labels = {"accuracy": "accuracy", "accuracy_at_095": "accuracy, decided at 0.95",
              "classified_at_095": "decided at 0.95", "density": "density"}  # fmt: skip
    for recipe in ctx.recipes:
        for name in ctx.datasets:
            part = _beside([r for r in rows if r["dataset"] == dataset_label(name)], recipe)
            panels: dict[str, dict[str, Any]] = {}
            for measure, label in labels.items():
                for which, title in titles.items():
                    if measure == "density" and which == "full":
                        continue
                    series = _width_series([r for r in part if r["which"] == which], measure)
                    if series:
                        panels.setdefault(label, {})[title] = series
            if panels:
                path = plots.save(
                    plots.width_study(panels), ctx.folder / f"widths-{dataset_label(name)}-{recipe}.png"
                )
                files.append(path)
                text.append(image(
                    ctx, path, f"Networks 40B-60B on {dataset_label(name)}, {recipe_name(recipe)}, methods "
                    "without it by their own; medians, and from the smallest to the largest run.",
                ))  # fmt: skip
    return Part("Width study", "\n".join(text), (table, *files))


def _beside(rows: list[Row], recipe: str) -> list[Row]:
    """Rows of the recipe; of a method that was not run by it, of the first that it was run by."""
    shown: dict[str, str] = {}
    for row in rows:
        if row["recipe"] == recipe:
            shown[row["method"]] = recipe
        else:
            shown.setdefault(row["method"], row["recipe"])
    return [row for row in rows if row["recipe"] == shown[row["method"]]]


def _width_series(rows: list[Row], measure: str) -> dict[str, tuple[list[int], np.ndarray]]:
    series = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        seeds = dict.fromkeys(row["seed"] for row in own)
        # Widths that every seed has: a curve of each run.
        widths = sorted(set.intersection(*({r["width"] for r in own if r["seed"] == s} for s in seeds)))
        kept = [row for row in own if row["width"] in widths]
        if widths and any(row[measure] is not None for row in kept):
            series[method] = (widths, _by_seed(kept, "width", measure))
    return series
