"""What a run found, as text for a terminal: no figures, nothing but the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._util.text_table import text_table
from .columns import LEGEND, prediction_columns


def run_table(results: Mapping[str, Any]) -> str:
    """Every way to predict, and what the names mean."""
    from ..runs.evaluate import no_path_note

    note = no_path_note(results["rows"])
    table = text_table(results["rows"], prediction_columns(results["rows"]))
    return "\n\n".join([table, *([] if note is None else [note]), LEGEND])


def selected_sentence(results: Mapping[str, Any]) -> str | None:
    """How many weights the median model of the first network keeps; None where there is none."""
    rows = [row for row in results["rows"] if row["gamma"] in ("MED", "PRN")]
    layers = [row for row in results["layers"] if row["network"] == results["layers"][0]["network"]]
    if not rows or not layers:
        return None
    weights = sum(row["weights"] for row in layers)
    kept = sum(round(row["density"] * row["weights"]) for row in layers)
    active = sum(round(row["active_density"] * row["weights"]) for row in layers)
    return (
        f"The median model keeps {kept:,} of {weights:,} weights; {active:,} of them are on a path from an "
        "input to an output."
    )
