"""Accuracy against the number of weights that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from .style import BLUE, GREY, new_figure, styled

#: What others have published for fully connected networks: name, weights left, accuracy on test data.
PUBLISHED: dict[str, tuple[tuple[str, int, float], ...]] = {
    "mnist": (
        ("Han et al. 2015, 300-100", 22_000, 0.9841),
        ("SWS, 300-100", 11_600, 0.9806),
        ("DNS, 300-100", 4_750, 0.9801),
        ("Sparse VD, 300-100", 3_900, 0.9808),
        ("LBBNN paper, 400-600", 44_000, 0.981),
        ("ISLaB-FLOW, 2x600", 887, 0.9671),
    ),
}


@styled
def frontier_figure(points: Sequence[Any], data: str, label: str) -> Figure:
    """Points of ``fastlbbnn.runs.frontier``, and the published points of others where there are any."""
    figure = new_figure(5.2, 3.6)
    axes = figure.subplots()
    numbers = points[0].accuracy is None
    values = [p.rmse if numbers else p.accuracy for p in points]
    axes.plot([p.weights for p in points], values, "-o", color=BLUE, label=label)
    for name, kept, accuracy in () if numbers else PUBLISHED.get(data, ()):
        axes.plot(kept, accuracy, "x", color=GREY)
        axes.annotate(
            name, (kept, accuracy), textcoords="offset points", xytext=(4, -9), fontsize=6, color=GREY
        )
    axes.set(
        xlabel="weights that are kept (log scale)", ylabel="RMSE" if numbers else "accuracy", xscale="log",
        title=data,
    )
    axes.legend(loc="upper right" if numbers else "lower right")
    return figure
