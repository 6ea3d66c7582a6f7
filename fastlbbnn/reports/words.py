"""Tables and sentences of a report, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..structure.paths import structure_of

#: Saved network -> what it is.
STAGES = {
    "trained": "After training",
    "post-trained": "After post-training with fixed inclusion probabilities",
    "post-median": "After post-training of the sparse model",
}

GAMMAS = {
    "gamma SIM": "the indicators are drawn from their posterior: structures are averaged over",
    "gamma ALL": "all weights are used",
    "gamma MED": "the median probability model: weights with an inclusion probability above 0.5",
    "gamma PRN": "what the method's own pruning rule leaves",
}

#: Key of a result row -> heading and format.
_COLUMNS = {
    "gamma": ("gamma", "{}"), "beta": ("beta", "{}"), "R": ("R", "{}"),
    "accuracy": ("accuracy", "{:.4f}"), "accuracy_at_095": ("accuracy, decided", "{:.4f}"),
    "classified_at_095": ("decided", "{:,}"), "rmse": ("RMSE", "{:.4g}"), "nll": ("NLL", "{:.4f}"),
    "ece": ("ECE", "{:.4f}"), "coverage": ("coverage", "{:.3f}"),
    "density": ("density", "{:.3g}"), "threshold": ("threshold", "{:.4g}"),
}  # fmt: skip


def has(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def prediction_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Headings and cells; measures that no row has are left out."""
    shown = {key: how for key, how in _COLUMNS.items() if any(has(row.get(key)) for row in rows)}
    if all(row.get("threshold", 0.5) == 0.5 for row in rows):
        shown.pop("threshold", None)
    return {
        "head": [heading for heading, _ in shown.values()],
        "rows": [
            [form.format(row[k]) if has(row.get(k)) else "-" for k, (_, form) in shown.items()]
            for row in rows
        ],
    }


def stage_rows(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How long each stage took and where it ended."""
    rows = []
    for stage in dict.fromkeys(row["stage"] for row in history):
        part = [row for row in history if row["stage"] == stage]
        last = part[-1]
        seconds = sum(row["seconds"] for row in part)
        rows.append(
            [
                stage,
                str(len(part)),
                f"{seconds:.1f}",
                f"{seconds / len(part):.3f}",
                f"{-last['loss']:.4f}",
                f"{last['kl']:,.0f}",
                f"{last['density']:.4f}",
                f"{last['mean_inclusion']:.4f}",
            ]
        )
    head = [
        "stage",
        "epochs",
        "seconds",
        "seconds an epoch",
        "ELBO an observation",
        "KL",
        "density",
        "mean inclusion",
    ]
    return {"caption": "Stages, with the last epoch's values", "head": head, "rows": rows}


def settings_rows(run: Any) -> list[dict[str, Any]]:
    recipe = run.recipe
    stages = [
        [s.name, str(s.until_epoch), s.mode, ", ".join(f"{k} {v:g}" for k, v in s.step_sizes.items() if v),
         f"ends early when E[psi] < {s.until_psi_below:g}" if s.until_psi_below is not None else "",
         s.saves or ""]
        for s in recipe.stages
    ]  # fmt: skip
    about = [
        ["method", run.config["method"]], ["data", run.config["dataset"]], ["recipe", recipe.name],
        ["network", "-".join(map(str, run.config["sizes"]))], ["likelihood", run.config["likelihood"]],
        ["batch", str(recipe.batch)], ["draws of the weights a step (M)", str(recipe.samples)],
        ["seed", str(run.config["seed"])], ["threads", str(run.config.get("threads", ""))],
        *([f"option {k}", str(v)] for k, v in recipe.options.items()),
        *([k, str(v)] for k, v in run.config["versions"].items()),
    ]  # fmt: skip
    return [
        {"caption": "Stages of the recipe", "rows": stages,
         "head": ["stage", "until epoch", "weights", "Adam step sizes", "", "saved as"]},
        {"caption": "The run", "head": ["", ""], "rows": [[k, v] for k, v in about if v]},
    ]  # fmt: skip


def headline(
    results: Mapping[str, Any], run: Any, network: nn.Module, held_out: str = "test"
) -> dict[str, Any]:
    """The numbers that a reader wants first: cards, and the same as sentences.

    ``held_out``: what the rows are that were predicted, "test" or "validation".
    """
    rows = [row for row in results["rows"] if row["stage"] == run.stages[0]]
    full = _best(rows, ("SIM", "ALL"))
    sparse = _best(rows, ("MED", "PRN"))
    measure, write = ("accuracy", _percent) if has(full.get("accuracy")) else ("rmse", "{:.4g}".format)
    name = "right" if measure == "accuracy" else "RMSE"
    cards = []
    if has(full.get(measure)):
        cards.append((write(full[measure]), f"{name}, {full['gamma']} {full['beta']}, R = {full['R']}"))
    if sparse is not None:
        found = structure_of(network)  # for the count of all weights
        if has(sparse.get(measure)):
            cards.append(
                (write(sparse[measure]), f"{name}, sparse model ({sparse['gamma']} {sparse['beta']})")
            )
        cards.append((_percent(sparse["density"]), f"of {found.weights:,} weights kept"))
    if has(full.get("classified_at_095")):
        cards.append((f"{full['classified_at_095']:,}", f"of {results['n_test']:,} decided at 0.95"))
        if has(full.get("accuracy_at_095")):
            cards.append((_percent(full["accuracy_at_095"]), "right where decided"))
    if has(full.get("ece")):
        cards.append((f"{full['ece']:.4f}", "expected calibration error"))
    return {"cards": cards, "sentence": _sentence(full, sparse, results["n_test"], held_out, measure)}


def _best(rows: Sequence[Mapping[str, Any]], gammas: tuple[str, ...]) -> Mapping[str, Any] | None:
    """The row that averages most draws; the first of several."""
    found = [row for row in rows if row["gamma"] in gammas]
    return max(found, key=lambda row: (row["beta"] == "SIM", row["R"]), default=None)


def _sentence(
    full: Mapping[str, Any], sparse: Mapping[str, Any] | None, count: int, held_out: str, measure: str
) -> str:
    if measure != "accuracy":
        return ""
    draws = f"Averaged over {full['R']} draws, the network" if full["R"] > 1 else "The network"
    text = f"{draws} is right on {_percent(full['accuracy'])} of {count:,} {held_out} rows."
    if sparse is not None:
        text += (
            f" Its sparse model uses {_percent(sparse['density'])} of the weights and is right on "
            f"{_percent(sparse['accuracy'])}."
        )
    decided = full.get("classified_at_095")
    if has(decided):
        text += f" It is sure enough to decide on {_percent(decided / count)} of the rows"
        right = full.get("accuracy_at_095")
        text += f", and right on {_percent(right)} of those." if has(right) else "."
    return text


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %" if share >= 0.1 else f"{100.0 * share:.2g} %"
