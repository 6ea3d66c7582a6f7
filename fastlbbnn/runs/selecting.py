"""From a run to the file of a selected network: which structure, and what the file has to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from ..data import Dataset
from ..sparse import SparseModel
from ..sparse.compact import Selection, selection_of
from ..structure.criteria import (
    THRESHOLDS,
    CriterionName,
    best_threshold,
    most_probable_model,
    with_structure,
)
from ..structure.paths import is_connected
from ..structure.thresholds import bottleneck, connecting_threshold, resolve_threshold
from .run import Run

#: Ways to choose a structure.
CRITERIA = ("median", "most-probable", "waic", "dic", "nll")


@dataclass
class Choice:
    """A network to select from, and how its weights are chosen."""

    model: nn.Module
    criterion: str
    threshold: float = 0.5
    #: Thresholds that a criterion compared.
    tried: list[dict[str, Any]] = field(default_factory=list)
    #: What a reader should know.
    notes: list[str] = field(default_factory=list)


def select_run(
    run: Run,
    *,
    network: str = "trained",
    threshold: float | None = None,
    criterion: str = "median",
    samples: int = 30,
    rows: int = 10_000,
    seed: int = 0,
    posterior: bool = True,
    dataset: Callable[[], Dataset],
) -> tuple[SparseModel, dict[str, Any]]:
    """The selected model, with all that its file needs, and a report in plain data.

    Args:
        threshold: inclusion probability above which a weight is kept; by default the criterion's.
        criterion: one of ``CRITERIA``; ``samples`` draws and at most ``rows`` observations for those that
            compare thresholds.
        dataset: the run's data, for criteria that need them.
    """
    if not any(p.gamma == "MED" for p in run.method.predictions):
        raise ValueError(
            f"{run.method.name} has no inclusion probabilities to select weights by; select is for the LBBNN "
            "methods"
        )
    model = run.model(network)
    if criterion == "most-probable":
        choice = _most_probable(model, seed)
    elif criterion == "median":
        choice = Choice(model, criterion, 0.5 if threshold is None else threshold)
    else:
        choice = _best(model, criterion, dataset(), samples, rows, seed)
    used = resolve_threshold(choice.model, choice.threshold, warn=False)
    if used != choice.threshold:
        choice.notes.append(
            f"no path has all its weights above {choice.threshold:g}; the closest threshold with one is "
            f"{used:.6g}"
        )
    elif bottleneck(choice.model) <= 0.0:
        raise ValueError(
            "no threshold connects an input to an output: every path has a weight of inclusion probability "
            "0, so any selected network would be a constant; train with a weaker prior or for longer"
        )
    selection = selection_of(choice.model, used, posterior=posterior)
    report = {
        **_report(selection), "asked": choice.threshold, "network": network, "criterion": choice.criterion,
        "asked_criterion": criterion, "tried": choice.tried, "notes": choice.notes,
    }  # fmt: skip
    found = selection.describe(run.preparation, provenance=_provenance(run, network, used))
    return found, report


def _provenance(run: Run, network: str, threshold: float) -> dict[str, Any]:
    """Where the file came from, without the places of files."""
    return {
        "versions": dict(run.config["versions"]), "method": run.config["method"], "recipe": run.recipe.name,
        "dataset": run.config["dataset"], "seed": run.config["seed"], "network": network,
        "data_sha256": None if run.source is None else run.source.content_hash, "threshold": threshold,
        "n_train": run.config["n_train"],
    }  # fmt: skip


def _most_probable(model: nn.Module, seed: int) -> Choice:
    generator = torch.Generator().manual_seed(seed)
    found = with_structure(model, most_probable_model(model, generator=generator).indicators)
    if is_connected(found):
        return Choice(found, "most-probable")
    note = (
        "the most probable structure has no path from an input to an output, so that it would be a constant; "
        "the median model instead"
    )
    return Choice(model, "median", notes=[note])


def _best(model: nn.Module, criterion: str, dataset: Dataset, samples: int, rows: int, seed: int) -> Choice:
    x, y = dataset.x_train, dataset.y_train
    if criterion == "nll":
        if dataset.held_out != "validation":
            raise ValueError(
                "--criterion nll chooses by rows that were held out, and this run has none but its test "
                "rows; train with --validation SHARE, or use waic"
            )
        x, y = dataset.x_test, dataset.y_test
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randperm(len(x), generator=generator)[:rows]
    notes, lowest = [], connecting_threshold(model, min(THRESHOLDS))
    if lowest < min(THRESHOLDS):
        notes.append(
            f"no path has all its weights above {min(THRESHOLDS):g}, the smallest threshold to compare; the "
            f"closest with one is {lowest:.6g}"
        )
    choice = best_threshold(
        model, x[kept], y[kept], cast(CriterionName, criterion), sorted({*THRESHOLDS, lowest}),
        samples=samples, generator=generator,
    )  # fmt: skip
    tried = [
        {"threshold": row.threshold, "density": row.density, "criterion": row.criterion.value,
         "effective_parameters": row.criterion.effective_parameters}
        for row in choice.rows
    ]  # fmt: skip
    return Choice(model, criterion, choice.threshold, tried, notes)


def _report(selection: Selection) -> dict[str, Any]:
    structure = selection.structure
    return {
        "threshold": selection.threshold,
        "layers": [
            {"layer": i + 1, "weights": s.weights, "mean_inclusion": s.mean_inclusion, "kept": s.kept,
             "active": s.active, "active_density": s.active_density}
            for i, s in enumerate(structure.layers)
        ],
        "weights": structure.weights, "kept": structure.kept, "active": structure.active,
        "density": structure.density, "active_density": structure.active_density,
        "used_inputs": int(structure.used_inputs.sum()), "inputs": structure.used_inputs.numel(),
    }  # fmt: skip
