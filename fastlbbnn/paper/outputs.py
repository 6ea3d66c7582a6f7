"""The tables of an experiment: predictions, inclusion probabilities, times, pruned networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..prediction import metrics
from ..prediction.predict import predict
from ..runs import load_run
from ..runs.evaluate import no_path_note
from ..runs.methods import METHODS
from ..runs.pruning import prune_neurons, prune_weights
from . import correlations, figures
from . import published as paper_numbers
from .context import Context, Part
from .jobs import dataset_label
from .tables import (
    MEASURES,
    SOURCES,
    Row,
    against,
    by_source,
    markdown,
    number,
    spread,
    summarise,
    write_csv,
)

_KEYS = ("dataset", "method", "gamma", "beta", "R", "source")
_HEADINGS = {"method": "method", "gamma": "gamma", "beta": "beta", "R": "R"}
_MARKS = {"above": " ▲", "within": " ●", "below": " ▼"}
_MARKS_NOTE = "● within the paper's range of runs, ▲ above it, ▼ below it."


def table_rows(rows: list[Row], stage: str) -> list[Row]:
    """The rows of one of the paper's tables.

    After post-training the rows of SIM and ALL are of the network that was trained on with fixed inclusion
    probabilities, those of sparse models of the network that was trained on as such.
    """
    if stage != "post-trained":
        return [row for row in rows if row["network"] == "trained"]
    has_sparse = {(row["dataset"], row["method"]) for row in rows if row["network"] == "post-median"}
    found = []
    for row in rows:
        is_sparse = row["gamma"] in ("MED", "PRN")
        own = "post-median" if is_sparse and (row["dataset"], row["method"]) in has_sparse else "post-trained"
        if row["network"] == own:
            found.append(row)
    return found


def paper_rows(dataset: str, stage: str) -> list[Row]:
    """The paper's rows under this project's names of methods."""
    fixed = [{**row, "method": "LBBNN-fixed"} for row in paper_numbers.predictions(dataset, "fixed-prior")]
    if stage == "fixed-prior":
        rows = fixed
    else:
        rows = paper_numbers.predictions(dataset, stage) + (fixed if stage == "trained" else [])
    if stage == "trained":
        rows += _paper_fnn(dataset)
    return [{**row, "source": "paper", "runs": 10} for row in rows]


def _paper_fnn(dataset: str) -> list[Row]:
    """The frequentist network before pruning, from the paper's tables of pruned ones."""
    return [
        {
            "dataset": dataset, "method": "FNN", "gamma": "ALL", "beta": "MEA", "R": 1, "density": 1.0,
            "accuracy": row["neuron_pruned_acc"], "accuracy_min": row["neuron_min"],
            "accuracy_max": row["neuron_max"],
        }
        for row in paper_numbers.pruning(dataset)
        if row["density"] == 1.0
    ]  # fmt: skip


def predictions(ctx: Context) -> Part:
    stage = ctx.experiment.stage
    ours = table_rows(ctx.rows(), stage)
    ran = write_csv(ctx.folder / "runs.csv", ours)
    found = summarise(ours, _KEYS, (*MEASURES, "nll", "ece"))
    methods = {row["method"] for row in found}
    wanted = "trained" if stage == "fixed-prior" else stage
    theirs = [
        row for row in ctx.authors("predictions")
        if row["network"] == wanted and row["dataset"] in {dataset_label(d) for d in ctx.datasets}
        and row["method"] in methods and row["gamma"] in _GAMMAS  # pruned FNNs have a table of their own
    ]  # fmt: skip
    found += summarise(theirs, _KEYS, MEASURES)
    for dataset in ctx.datasets:
        found += [row for row in paper_rows(dataset_label(dataset), stage) if row["method"] in methods]
    paper = {_place(row): row for row in found if row["source"] == "paper"}
    for row in found:
        if row["source"].startswith("ours"):
            row["against_paper"] = against(row, paper.get(_place(row), {}))
            row["paper_density"] = paper.get(_place(row), {}).get("density")
    found.sort(key=_sort_key)
    hidden = ("stage", "network", "epoch_seconds_rtx2080ti", "paper_density")
    path = write_csv(
        ctx.folder / "predictions.csv", [{k: v for k, v in r.items() if k not in hidden} for r in found]
    )
    text = []
    for dataset in ctx.datasets:
        part = [row for row in found if row["dataset"] == dataset_label(dataset)]
        own = [row for row in ours if row["dataset"] == dataset_label(dataset)]
        text.append(_prediction_text(dataset_label(dataset), part) + _no_path_text(own))
    return Part("Predictions", "\n".join(text), (ran, path))


def _prediction_text(dataset: str, rows: list[Row]) -> str:
    counts = ", ".join(
        f"{source} {_range([row['runs'] for row in rows if row['source'] == source])}"
        for source in dict.fromkeys(row["source"] for row in rows)
    )

    def accuracy(row: Row) -> str:
        return spread(row, "accuracy") + _MARKS.get(row.get("against_paper") or "", "")

    def decided(row: Row) -> str:
        if row.get("classified_at_095") is None or row["R"] == 1:
            return ""
        return f"{number(row.get('accuracy_at_095')) or '-'}, {number(row['classified_at_095'], 0)}"

    marked = any(row.get("against_paper") for row in rows)
    return (
        (summary_text(dataset, rows) if marked else "")
        + f"### {dataset}: accuracy\n\nMedian (smallest, largest) over the runs ({counts}).\n\n"
        + by_source(rows, _HEADINGS, accuracy, _MARKS_NOTE if marked else "")
        + f"\n### {dataset}: density\n\n"
        + by_source(rows, _HEADINGS, lambda row: spread(row, "density"))
        + f"\n### {dataset}: decisions at 0.95\n\nAccuracy where decided, and how many were.\n\n"
        + by_source(rows, _HEADINGS, decided)
    )


def summary_text(dataset: str, rows: list[Row]) -> str:
    """A line per method and recipe: how many of its predictions hold against the paper's."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("against_paper"):
            groups.setdefault((row["method"], row["source"]), []).append(row)
    body = []
    for (method, source), group in groups.items():
        reached = sum(row["against_paper"] != "below" for row in group)
        # To the three decimals that the paper has; a few weights in a million make no difference.
        no_denser = sum(round(row["density"], 3) <= row["paper_density"] for row in group)
        sparsest = min(group, key=lambda row: (row["paper_density"], row["density"]))
        holds = reached == no_denser == len(group)
        body.append([
            method, SOURCES.get(source, source), str(max(row["runs"] for row in group)),
            f"{reached} of {len(group)}", f"{no_denser} of {len(group)}",
            number(sparsest["density"]), number(sparsest["paper_density"]), "✔" if holds else "",
        ])  # fmt: skip
    head = [
        "method", "column below", "runs", "as accurate", "no denser", "sparsest: density", "paper's", "both"
    ]
    note = (
        "How many of a method's ways to predict have a median accuracy within the range of the paper's runs "
        "or above it, and how many use no larger share of the weights than the paper's."
    )
    return f"### {dataset}: against the paper\n\n{note}\n\n{markdown(head, body)}\n"


def _no_path_text(rows: list[Row]) -> str:
    """How many median models had no path, and what was done about it."""
    note = no_path_note(rows)
    if note is None:
        return ""
    median = {(row["method"], row["source"], row["seed"]): row for row in rows if row["gamma"] == "MED"}
    counts = []
    for method, source in dict.fromkeys(key[:2] for key in median):
        runs = [row for key, row in median.items() if key[:2] == (method, source)]
        count = sum(row["threshold"] != 0.5 for row in runs)
        if count:
            counts.append(f"{method} ({source}) {count} of {len(runs)} runs")
    return f"\n{note} This is so for {', '.join(counts)}.\n"


def _range(counts: list[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in _KEYS if key != "source")


#: In the order of the tables.
_GAMMAS, _BETAS = ("SIM", "ALL", "MED", "PRN"), ("SIM", "MEA")


def _sort_key(row: Row) -> tuple[Any, ...]:
    return (
        row["dataset"],
        method_order(row["method"]),
        _GAMMAS.index(row["gamma"]),
        _BETAS.index(row["beta"]),
        row["R"],
    )


def method_order(method: str) -> int:
    order = list(METHODS)
    return order.index(method) if method in order else len(order)


def inclusion(ctx: Context) -> Part:
    keys = ("dataset", "method", "layer", "source")
    measures = ("mean_inclusion", "density", "active_density")
    ours = [row for row in ctx.layer_rows() if row["method"].startswith("LBBNN")]
    found = summarise(ours, keys, measures)
    names = {dataset_label(d) for d in ctx.datasets}
    methods = {row["method"] for row in found}
    theirs = [
        row for row in ctx.authors("layers") if row["dataset"] in names and row["method"] in methods
    ]
    found += summarise(theirs, keys, ("mean_inclusion",))
    for dataset in names:
        for row in paper_numbers.inclusion(dataset):
            if row["method"] in methods:
                limits = {"mean_inclusion_min": row.pop("min"), "mean_inclusion_max": row.pop("max")}
                found.append({**row, **limits, "source": "paper", "runs": 10})
    found.sort(key=lambda row: (row["dataset"], method_order(row["method"]), row["layer"]))
    path = write_csv(ctx.folder / "inclusion.csv", found)
    heads = {"dataset": "data", "method": "method", "layer": "layer"}
    text = by_source(found, heads, lambda row: spread(row, "mean_inclusion"))
    return Part("Mean inclusion probability per layer", text, (path,))


def times(ctx: Context) -> Part:
    """Epoch times over those of the plain network, measured beside each other in every run."""
    rows = ctx.timings()
    keys = ("dataset", "method", "source")
    found = summarise(rows, keys, ("ratio", "epoch_seconds", "fnn_epoch_seconds"))
    places = list(dict.fromkeys((row["dataset"], row["method"]) for row in found))
    for dataset, method in places:
        ratio = paper_numbers.epoch_ratio(dataset, method)
        if ratio is not None:
            found.append({"dataset": dataset, "method": method, "source": "paper", "runs": 1, "ratio": ratio})
    path = write_csv(ctx.folder / "times.csv", found)
    heads = {"dataset": "data", "method": "method"}
    text = by_source(found, heads, lambda row: spread(row, "ratio", 2))
    note = (
        "Time of a training epoch as a multiple of the frequentist network's. Ours: both measured in turns "
        "in the same process, median (smallest, largest) of the runs. Paper: its published seconds on a "
        "GPU.\n\n"
    )
    machines = "; ".join(sorted({f"{row['machine']}, threads: {row['threads']}" for row in rows}))
    return Part("Epoch time", note + text + f"\nMeasured on {machines}.\n", (path,))


def pruning(ctx: Context) -> Part:
    """The frequentist network pruned after training, and gradually while it trains."""
    rows: list[Row] = []
    for job in ctx.done:
        run, dataset = load_run(job.folder), ctx.dataset(job.dataset)
        about = {"dataset": job.dataset_name, "seed": job.seed}
        if job.method == "FNN-GMP":
            last = next(row for row in ctx.results(job).predictions if row["network"] == "trained")
            rows.append(
                {**about, "density": job.density, "how": "gradual, retrained", "accuracy": last["accuracy"]}
            )
            continue
        for density in _densities(job.dataset_name):
            for how, prune in _PRUNERS.items():
                network = run.model("trained")
                try:
                    if density < 1.0:
                        prune(network, density)
                    p = predict(network, dataset.x_test, mode="mean", likelihood=dataset.likelihood)
                    accuracy = metrics.accuracy(p, dataset.y_test)
                except ValueError:  # so few neurons cannot be left
                    accuracy = None
                rows.append({**about, "density": density, "how": how, "accuracy": accuracy})
    ran = write_csv(ctx.folder / "runs.csv", rows)
    found = summarise(rows, ("dataset", "density", "how"), ("accuracy",))
    for dataset in {row["dataset"] for row in found}:
        for row in paper_numbers.pruning(dataset):
            for kind in ("neuron", "weight"):
                found.append({
                    "dataset": dataset, "density": row["density"], "how": f"paper, {kind} pruning",
                    "runs": 10, "accuracy": row[f"{kind}_pruned_acc"], "accuracy_min": row[f"{kind}_min"],
                    "accuracy_max": row[f"{kind}_max"],
                })  # fmt: skip
    found += _authors_pruned(ctx, {row["dataset"] for row in found})
    found.sort(key=lambda row: (row["dataset"], -row["density"]))
    path = write_csv(ctx.folder / "pruning.csv", found)
    text = []
    order = [
        "paper, neuron pruning", "paper, weight pruning", "authors, neurons", "authors, weights", *_PRUNERS,
        "gradual, retrained",
    ]  # fmt: skip
    hows = [how for how in order if any(row["how"] == how for row in found)]
    for dataset in sorted({row["dataset"] for row in found}):
        part = [row for row in found if row["dataset"] == dataset]
        cells = {(row["density"], row["how"]): spread(row, "accuracy") for row in part}
        densities = sorted({row["density"] for row in part}, reverse=True)
        body = [[f"{d:g}", *(cells.get((d, how), "") for how in hows)] for d in densities]
        text.append(f"### {dataset}\n\n" + markdown(["density", *hows], body))
    note = (
        "Median (smallest, largest) accuracy. Pruned after training without training on, but for the last "
        "column: gradual magnitude pruning with retraining, the honest baseline, which the paper does not "
        "have. By what ours give on PHONEME, the headings of the paper's two columns seem exchanged.\n\n"
    )
    return Part("Pruned frequentist networks", note + "\n".join(text), (ran, path))


def _authors_pruned(ctx: Context, datasets: set[str]) -> list[Row]:
    """Rows of the authors' objective: they name how and to which density, "weights 0.307"."""
    rows = []
    for row in ctx.authors("predictions"):
        if row["dataset"] not in datasets or row["method"] != "FNN":
            continue
        kind, _, density = row["gamma"].partition(" ")
        # "ALL" is the network before it is pruned.
        for how in ("weights", "neurons") if kind == "ALL" else (kind,):
            rows.append({**row, "how": f"authors, {how}", "density": float(density or 1.0)})
    return summarise(rows, ("dataset", "density", "how"), ("accuracy",))


def _densities(dataset: str) -> list[float]:
    return [row["density"] for row in paper_numbers.pruning(dataset)] or [1.0, 0.5, 0.25, 0.1]


_PRUNERS: dict[str, Callable[..., Any]] = {
    "weights": prune_weights,
    "neurons, share of weights": prune_neurons,
    "neurons, share of neurons": lambda network, density: prune_neurons(network, density, of="neurons"),
}

#: Name in an experiment's declaration -> what makes it.
OUTPUTS: dict[str, Callable[[Context], Part]] = {
    "predictions": predictions,
    "inclusion": inclusion,
    "times": times,
    "pruning": pruning,
    "histograms": figures.histograms,
    "foreign_entropies": figures.foreign_entropies,
    "foreign_examples": figures.foreign_examples,
    "misclassified": figures.misclassified,
    "width_study": figures.width_study,
    "correlations": correlations.correlations,
    "samples": figures.samples,
}
#: Those of them that draw, and have no table of what a run's results hold.
PICTURES = ("histograms", "foreign_examples", "misclassified")


def make(ctx: Context) -> list[Part]:
    """Every output of the experiment, of the runs that are done."""
    if not ctx.done:
        why = "is finished"
        if ctx.experiment.needs_networks:
            why += " and has its networks (*.safetensors); without --only-tables they are trained"
        raise ValueError(f"no run of {ctx.experiment.name} {why}; nothing to make tables of")
    parts = []
    with warnings.catch_warnings():
        # Median models without a path are resolved in the results, which say at which threshold.
        warnings.filterwarnings("ignore", message="no path from an input")
        for name in ctx.experiment.outputs:
            if not ctx.pictures and name in PICTURES:
                continue
            part = OUTPUTS[name](ctx)
            parts.append(replace(part, files=tuple(Path(p) for p in part.files)))
    return parts
