"""The best constant prediction, and what to say about a network that is no better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data import Dataset
from ..prediction import metrics

#: Errors and negative log-likelihoods of at least this share of the constant's are no better.
_NO_BETTER = {"rmse": 0.995, "nll": 0.95}

WHAT_HELPS = (
    "What may help: features of size 1 (--standardise), fewer hidden units (--hidden 32), another recipe "
    "(--recipe list), longer training (--epochs), and a look at the data (--target, --ignore)."
)


def constant_figures(dataset: Dataset) -> dict[str, Any]:
    """Figures on the held-out rows of the best constant: the training rows' class shares, or their mean."""
    y = dataset.y_test
    if dataset.n_classes is None:
        mean = dataset.y_train.reshape(len(dataset.y_train), -1).double().mean(0)
        answer, targets = (dataset.in_units(values) for values in (mean, y.reshape(len(y), -1).double()))
        rmse = metrics.rmse(answer.expand_as(targets), targets)
        return {"answer": ", ".join(f"{value:.6g}" for value in answer.tolist()), "rmse": rmse}
    counts = torch.bincount(dataset.y_train.reshape(-1).long(), minlength=dataset.n_classes).double()
    share = counts / counts.sum()
    most = int(share.argmax())
    p, y = _in_every_row(share, len(y)), y.reshape(-1).long()
    name = str(most) if dataset.class_names is None else dataset.class_names[most]
    return {"answer": name, "accuracy": (y == most).double().mean().item(), "nll": metrics.nll(p, y)}


def _in_every_row(share: Tensor, rows: int) -> Tensor:
    return share.clamp(min=1e-12).expand(rows, -1)


def is_no_better(row: Mapping[str, Any], constant: Mapping[str, Any]) -> bool:
    """Whether a row of results is no better than the constant."""
    if "accuracy" in constant:
        return row["accuracy"] <= constant["accuracy"] and row["nll"] >= _NO_BETTER["nll"] * constant["nll"]
    return row["rmse"] >= _NO_BETTER["rmse"] * constant["rmse"]


def constant_warnings(results: Mapping[str, Any], held_out: str = "test") -> list[str]:
    """A sentence for each network some of whose predictions are no better than a constant.

    Where predictions are averaged over draws, the average counts.
    """
    constant, found = results["constant"], []
    for network in dict.fromkeys(row["network"] for row in results["rows"]):
        rows = _averaged([row for row in results["rows"] if row["network"] == network])
        bad = [row for row in rows if is_no_better(row, constant)]
        if bad:
            which = "" if len(bad) == len(rows) else f" by {', '.join(map(_name, bad))}"
            found.append(
                f"the network {network!r} predicts{which} NO BETTER THAN A CONSTANT: "
                f"{_compared(bad[0], constant, results['n_test'], held_out)}."
            )
    return [*found, WHAT_HELPS] if found else []


def _averaged(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    most: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["gamma"], row["beta"])
        if key not in most or row["R"] > most[key]["R"]:
            most[key] = row
    return list(most.values())


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['gamma']} {row['beta']}"


def _compared(row: Mapping[str, Any], constant: Mapping[str, Any], count: int, held_out: str) -> str:
    if "accuracy" in constant:
        return (
            f"{_name(row)} is right on {100 * row['accuracy']:.1f} % of {count} {held_out} rows, and "
            f"always answering {constant['answer']!r} on {100 * constant['accuracy']:.1f} %"
        )
    return (
        f"{_name(row)} has a root mean squared error of {row['rmse']:.4g} on {count} {held_out} rows, and "
        f"always answering {constant['answer']}, the mean of the training rows, {constant['rmse']:.4g}"
    )
