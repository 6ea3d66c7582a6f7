"""Reliability diagrams: is a prediction that claims 90 % right nine times out of ten?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ...prediction.metrics import Calibration
from .style import BLUE, GREY, array, legend_below, new_figure, styled


@styled
def reliability_diagram(panels: Mapping[str, Calibration]) -> Figure:
    """Accuracy against confidence above, how often each confidence occurs below.

    ``panels``: title -> what ``metrics.calibration`` gives. Its last bin, a confidence of exactly 1, has a
    point of its own and is part of the last bar.
    """
    if not panels:
        raise ValueError("no predictions to draw")
    figure = new_figure(2.9 * len(panels) + 0.3, 4.0)
    grid = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row", height_ratios=[3.0, 1.0])
    for c, (title, calibration) in enumerate(panels.items()):
        axes, below = grid[:, c]
        edges, count = array(calibration.edges), array(calibration.count).astype(float)
        confidence, accuracy = array(calibration.confidence), array(calibration.accuracy)
        error = float(np.nansum(count * np.abs(accuracy - confidence)) / count.sum())
        axes.plot([0.0, 1.0], [0.0, 1.0], color=GREY, linestyle="--", linewidth=1.0, label="perfect")
        right = _with_last_two(np.nan_to_num(accuracy) * count)
        total = _with_last_two(count)
        left, width = edges[:-1], np.diff(edges)
        with np.errstate(invalid="ignore"):
            heights = np.nan_to_num(right / total)
        axes.bar(left, heights, width=width, align="edge", color=BLUE, alpha=0.3)
        axes.plot(confidence, accuracy, "o", color=BLUE, label="accuracy in the bin", clip_on=False, zorder=4)
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), title=f"{title}\nECE {error:.4f}")
        below.bar(left, total / total.sum(), width=width, align="edge", color=BLUE)
        below.set(xlabel="confidence", ylim=(0.0, 1.0))
    grid[0, 0].set_ylabel("accuracy")
    grid[1, 0].set_ylabel("share")
    legend_below(figure, grid[0, :1])
    return figure


def _with_last_two(values: np.ndarray) -> np.ndarray:
    """The bin of confidence 1 added to the one below it."""
    return np.append(values[:-2], values[-2] + values[-1])
