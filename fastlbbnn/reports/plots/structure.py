"""Which weights and inputs the posterior includes, and how their indicators go together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...structure.histogram import InclusionCounts
from .style import (
    BLUE,
    DIVERGING,
    GREY,
    SEQUENTIAL,
    VERMILLION,
    array,
    hide_axes,
    legend_below,
    new_figure,
    styled,
)

#: Inputs whose names fit below their bars.
MOST_NAMES = 50


@styled
def inclusion_histograms(columns: Mapping[str, Sequence[Any]]) -> Figure:
    """Histograms of inclusion probabilities: a row per layer, a column per network.

    ``columns``: title -> the inclusion probabilities of every layer, of any shape, or their
    ``InclusionCounts``.
    """
    if not columns or not all(len(layers) for layers in columns.values()):
        raise ValueError("no inclusion probabilities to draw; expected at least one layer per network")
    rows = max(len(layers) for layers in columns.values())
    figure = new_figure(3.6 * len(columns) + 0.4, 1.75 * rows + 0.5)
    grid = figure.subplots(rows, len(columns), squeeze=False, sharex=True)
    for c, (title, layers) in enumerate(columns.items()):
        for r in range(rows):
            axes = grid[r, c]
            if r >= len(layers):
                axes.set_axis_off()
                continue
            layer = layers[r] if isinstance(layers[r], InclusionCounts) else InclusionCounts.of(layers[r])
            counts = np.asarray(layer.counts)
            edges = np.linspace(0.0, 1.0, len(counts) + 1)
            colours = np.where(edges[:-1] > 0.5 - 1e-9, VERMILLION, BLUE)
            axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=colours)
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_ylim(0.0, max(10.0, 4.0 * counts.max()))
            axes.set_xlim(0.0, 1.0)
            axes.axvline(0.5, color="black", linestyle="--", linewidth=0.8)
            kept = f"{layer.above_half:,} of {counts.sum():,} above 0.5"
            text = f"layer {r + 1}: mean {layer.mean:.3f}, {kept}"
            axes.set_title(f"{title}\n{text}" if r == 0 else text, fontsize=8.5)
            if c == 0:
                axes.set_ylabel("weights")
        grid[len(layers) - 1, c].set_xlabel("inclusion probability")
        grid[len(layers) - 1, c].tick_params(labelbottom=True)
    return figure


@styled
def used_inputs(
    panels: Mapping[str, Any],
    *,
    input_shape: tuple[int, ...],
    label: str = "selected weights per input",
    names: Sequence[str] | None = None,
) -> Figure:
    """How much of the first layer hangs on each input: an image for images, else bars.

    ``panels``: title -> one number per input; ``names``: of the inputs, written where there is room for them.
    """
    if not panels:
        raise ValueError("nothing to draw; expected one number per input")
    if names is not None and len(names) > MOST_NAMES:
        names = None
    image = len(input_shape) == 2
    wide = 3.4 if image else 6.4
    columns = len(panels) if image else 1
    rows = 1 if image else len(panels)
    figure = new_figure(wide * columns, (3.0 if image else 1.9 * rows + 0.3))
    grid = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes, (title, values) in zip(grid, panels.items()):
        counts = array(values).reshape(-1)
        used = int((counts > 0).sum())
        axes.set_title(f"{title}\n{used} of {counts.size} inputs used")
        if image:
            # Unused inputs are blank, so that "never" cannot be taken for "seldom".
            shown = np.ma.masked_less_equal(counts.reshape(input_shape), 0)
            drawn = axes.imshow(shown, cmap=SEQUENTIAL, vmin=0.0, interpolation="nearest")
            hide_axes(axes)
            for spine in axes.spines.values():
                spine.set(visible=True, color="#BBBBBB")
            figure.colorbar(drawn, ax=axes, label=label, shrink=0.85)
        else:
            axes.bar(np.arange(counts.size), counts, width=1.0 if counts.size > 60 else 0.8, color=BLUE)
            if names is None:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            else:
                long = sum(map(len, names)) > 60
                axes.set_xticks(np.arange(counts.size), names, rotation=90 if long else 0)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
            axes.set(ylabel=label, xlim=(-0.5, counts.size - 0.5))
            if names is None:
                axes.set_xlabel("input")
    return figure


@styled
def correlation_heatmaps(
    matrices: Mapping[str, Any], *, draws: int | None = None, of: str = "indicator"
) -> Figure:
    """Correlations between indicators: heatmaps above, the values off the diagonal below.

    ``matrices``: title -> correlation matrix; NaN where an indicator never changes. ``draws``: how many
    draws they were estimated from; independent indicators would then spread as the grey curve. ``of``: what
    they are between, where it is not indicators. Estimates share one scale, as they share their noise; exact
    matrices have one each.
    """
    if not matrices:
        raise ValueError("no correlation matrices to draw")
    shown = {title: array(matrix).astype(float) for title, matrix in matrices.items()}
    for title, matrix in shown.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"{title}: a matrix {list(matrix.shape)}; expected a square one")
    off = {title: m[~np.eye(len(m), dtype=bool)] for title, m in shown.items()}
    off = {title: values[np.isfinite(values)] for title, values in off.items()}
    figure = new_figure(3.3 * len(shown) + 0.6, 5.0)
    grid = figure.subplots(2, len(shown), squeeze=False, height_ratios=[1.75, 1.0])
    # The largest value that is not rare, so that the diagonal does not rule the scale.
    everything = np.abs(np.concatenate(list(off.values())))
    for c, (title, matrix) in enumerate(shown.items()):
        values, least = (np.abs(off[title]), 0.01) if draws is None else (everything, 0.1)
        limit = max(least, float(np.quantile(values, 0.999)) if values.size else least)
        axes = grid[0, c]
        # Bigger than the pixels it gets, a matrix is thinned, not averaged: an average of
        # correlations of both signs would look like none.
        step = max(1, math.ceil(len(matrix) / 600))
        drawn = axes.imshow(
            matrix[::step, ::step],
            cmap=DIVERGING,
            vmin=-limit,
            vmax=limit,
            interpolation="nearest",
            extent=(0, len(matrix), len(matrix), 0),
        )
        axes.set(title=title, xlabel=of)
        axes.grid(False)
        axes.set_facecolor("#EEEEEE")
        below = grid[1, c]
        edges = np.linspace(-limit, limit, 81)
        if off[title].size:
            below.hist(np.clip(off[title], -limit, limit), bins=edges, density=True, color=BLUE)
        if draws is not None:
            sd = 1.0 / math.sqrt(draws)
            at = np.linspace(-limit, limit, 400)
            curve = np.exp(-0.5 * (at / sd) ** 2) / (sd * math.sqrt(2.0 * math.pi))
            label = f"what {draws} draws of independent indicators give"
            below.plot(at, curve, color=GREY, linewidth=1.2, label=label)
        below.set(xlabel=f"correlation of two {of}s", yticks=[], xlim=(-limit, limit))
        below.grid(False)
        if draws is None or c == len(shown) - 1:
            beside = [axes] if draws is None else list(grid[0])
            figure.colorbar(drawn, ax=beside, label="correlation", shrink=0.9, extend="both")
        if c == 0:
            grid[0, 0].set_ylabel(of)
            below.set_ylabel("frequency")
    legend_below(figure, grid[1])
    return figure
