"""The columns of tables of predictions: what a row of results holds, and how it is written. Once, for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._util.text_table import Column, Columns


def share(value: float) -> str:
    """Four digits after the point; for small shares, two significant ones."""
    return f"{value:.4f}" if value >= 0.01 else f"{value:.2g}"


#: Key of a row of results -> its column.
PREDICTIONS: Columns = {
    "network": Column("network"),
    "gamma": Column("gamma"),
    "beta": Column("beta"),
    "R": Column("R"),
    "accuracy": Column("accuracy", "{:.4f}".format),
    "accuracy_at_095": Column("acc. >= 0.95", "{:.4f}".format),
    "classified_at_095": Column("decided", "{:,}".format),
    "rmse": Column("RMSE", "{:.4g}".format),
    "nll": Column("NLL", "{:.4f}".format),
    "ece": Column("ECE", "{:.4f}".format),
    "coverage": Column("coverage", "{:.3f}".format),
    "density": Column("density", share),
    "threshold": Column("threshold", "{:.4g}".format),
}

#: Layers of a selected network.
LAYERS: Columns = {
    "layer": Column("layer"),
    "weights": Column("weights", "{:,}".format),
    "mean_inclusion": Column("mean inclusion", "{:.4f}".format),
    "kept": Column("kept", "{:,}".format),
    "active": Column("on a path", "{:,}".format),
    "active_density": Column("share on a path", "{:.3g}".format),
}

#: Stages of a run's history.
STAGES: Columns = {
    "stage": Column("stage"),
    "epochs": Column("epochs"),
    "seconds": Column("seconds", "{:.1f}".format),
    "epoch_seconds": Column("seconds per epoch", "{:.3f}".format),
    "elbo": Column("ELBO per observation", "{:.4f}".format),
    "kl": Column("KL", "{:,.0f}".format),
    "density": Column("density", share),
    "mean_inclusion": Column("mean inclusion", "{:.4f}".format),
}

#: What the paper's names mean.
LEGEND = (
    "gamma: SIM indicators drawn, ALL all weights, MED median model, PRN pruned.  "
    "beta: SIM weights drawn, MEA posterior means.  R: draws averaged."
)


def prediction_columns(rows: Sequence[Mapping[str, Any]], *leave_out: str) -> Columns:
    """The columns that ``rows`` need: thresholds only where a median model needed another one than 0.5."""
    hidden = {*leave_out}
    if all(row.get("threshold", 0.5) == 0.5 for row in rows):
        hidden.add("threshold")
    return {key: column for key, column in PREDICTIONS.items() if key not in hidden}


def stage_rows(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How long each stage took and where it ended."""
    rows = []
    for stage in dict.fromkeys(row["stage"] for row in history):
        part = [row for row in history if row["stage"] == stage]
        last, seconds = part[-1], sum(row["seconds"] for row in part)
        rows.append({
            "stage": stage, "epochs": len(part), "seconds": seconds, "epoch_seconds": seconds / len(part),
            "elbo": -last["loss"], "kl": last["kl"], "density": last["density"],
            "mean_inclusion": last["mean_inclusion"],
        })  # fmt: skip
    return rows
