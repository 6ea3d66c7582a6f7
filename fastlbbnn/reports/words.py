"""Tables and sentences of a report, as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from .._util.text_table import Columns, cells
from .._util.text_table import has_value as has
from ..structure.paths import structure_of

#: Saved network -> what it is.
NETWORKS = {
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

def table_of(caption: str, rows: Sequence[Mapping[str, Any]], columns: Columns) -> dict[str, Any]:
    """A table of a page: caption, headings and cells."""
    head, body = cells(rows, columns)
    return {"caption": caption, "head": head, "rows": body}


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
        ["network", "-".join(map(str, run.config["sizes"]))], 
        ["likelihood", run.config["likelihood"]["name"]],
        ["batch", str(recipe.batch)], ["draws of the weights per step (M)", str(recipe.samples)],
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
    rows = [row for row in results["rows"] if row["network"] == run.networks[0]]
    sparse = _best(rows, ("MED", "PRN"))
    # A network that is pruned while it trains has nothing else.
    full = _best(rows, ("SIM", "ALL")) or sparse or {}
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
    if decided is not None:
        text += f" It is sure enough to decide on {_percent(decided / count)} of the rows"
        right = full.get("accuracy_at_095")
        text += "." if right is None else f", and right on {_percent(right)} of those."
    return text


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %" if share >= 0.1 else f"{100.0 * share:.2g} %"


#: Data sets that the notes of recipes speak of.
_OF_THE_PAPER = ("PHONEME", "MNIST", "FMNIST")


def notes_on(notes: str, dataset: str) -> str:
    """A recipe's notes for a reader of a run: without the sentences about data of others."""
    others = [name for name in _OF_THE_PAPER if name != dataset.upper()]
    foreign = re.compile(rf"\b(?:{'|'.join(others)})\b")
    # A sentence begins with a capital letter, or with the name of a recipe in backquotes.
    sentences = re.split(r"(?<=[.)])\s+(?=[A-Z(`])", notes)
    return " ".join(s for s in sentences if not foreign.search(s))
