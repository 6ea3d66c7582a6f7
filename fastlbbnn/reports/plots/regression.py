"""Predicted numbers beside the observed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .style import BLUE, GREY, SKY, array, legend_below, new_figure, styled


@styled
def observed_against_predicted(
    observed: Any,
    predicted: Any,
    lower: Any = None,
    upper: Any = None,
    *,
    level: float = 0.95,
    most: int = 400,
) -> Figure:
    """Each observation at its predicted mean, with its interval; perfect predictions lie on the diagonal.

    All are [n]. Where there are more than ``most``, evenly spaced ones (by predicted mean) are shown.
    """
    y, mean = array(observed).reshape(-1).astype(float), array(predicted).reshape(-1).astype(float)
    if y.size == 0 or y.size != mean.size:
        raise ValueError(
            f"{y.size} observed and {mean.size} predicted numbers; expected the same number, at least one"
        )
    chosen = np.argsort(mean, kind="stable")
    if chosen.size > most:
        chosen = chosen[np.linspace(0, chosen.size - 1, most).round().astype(int)]
    figure = new_figure(4.6, 4.2)
    axes = figure.subplots()
    if lower is not None and upper is not None:
        low, high = (array(v).reshape(-1).astype(float)[chosen] for v in (lower, upper))
        axes.vlines(mean[chosen], low, high, color=SKY, linewidth=1.0, alpha=0.6,
                    label=f"{100 * level:g} % interval")  # fmt: skip
    axes.plot(mean[chosen], y[chosen], ".", color=BLUE, markersize=4.0, label="observed")
    ends = [min(mean.min(), y.min()), max(mean.max(), y.max())]
    axes.plot(ends, ends, color=GREY, linestyle="--", linewidth=1.0, label="perfect")
    axes.set(xlabel="predicted mean", ylabel="observed")
    legend_below(figure, [axes])
    return figure
