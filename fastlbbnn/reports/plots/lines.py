"""Curves: accuracy against the number of samples or the width, and entropies of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from ...prediction import metrics
from .style import BLACK, GREY, array, legend_below, method_style, new_figure, styled

#: Label -> (x: [points], y: [points] or [runs, points]).
Series = Mapping[str, tuple[Any, Any]]


def _draw_series(axes: Axes, series: Series) -> None:
    """The median over runs as a line, from the smallest to the largest run as a band."""
    for position, (label, (x, y)) in enumerate(series.items()):
        at, values = array(x), np.atleast_2d(array(y).astype(float))
        if values.shape[1] != at.size:
            raise ValueError(
                f"{label}: {at.size} points in x and {values.shape[1]} in y; expected the same number"
            )
        colour, marker = method_style(label, position)
        dashed = "--" if is_sparse(label) else "-"
        axes.plot(
            at,
            np.median(values, axis=0),
            dashed,
            marker=marker,
            color=colour,
            label=label,
            markerfacecolor="white" if is_sparse(label) else colour,
        )
        if len(values) > 1:
            axes.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0.0)


def is_sparse(label: str) -> bool:
    """The paper's postfix S: the network after its method's own sparsification."""
    return label.endswith((" S", ", S")) or " S," in label


@styled
def accuracy_against_samples(panels: Mapping[str, Series], *, columns: int = 2) -> Figure:
    """Accuracy of the averaged prediction against the number of draws R, an axis per data set."""
    figure = new_figure(4.2 * min(columns, len(panels)) + 0.4, 3.2 * math.ceil(len(panels) / columns) + 0.5)
    grid = figure.subplots(
        math.ceil(len(panels) / columns), min(columns, len(panels)), squeeze=False
    ).reshape(-1)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, series) in zip(grid, panels.items()):
        _draw_series(axes, series)
        axes.set(title=title, xlabel="samples R (log scale)", ylabel="accuracy", xscale="log")
        ticks = sorted({float(v) for x, _ in series.values() for v in array(x)})
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
    legend_below(figure, grid)
    return figure


@styled
def width_study(
    rows: Mapping[str, Mapping[str, Series]], *, xlabel: str = "width factor B (hidden layers 40B and 60B)"
) -> Figure:
    """One row of axes per measure, one column per way to predict.

    ``rows``: y label -> title -> series over the width factor.
    """
    columns = max(len(panels) for panels in rows.values())
    figure = new_figure(4.6 * columns, 2.5 * len(rows) + 0.8)
    grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True)
    titles: list[str] = []
    for axes_row, (ylabel, panels) in zip(grid, rows.items()):
        drawn = axes_row[: len(panels)]
        for axes, (title, series) in zip(axes_row, panels.items()):
            _draw_series(axes, series)
            axes.set(title=title if list(panels) != titles else "", ylabel=ylabel)
        titles = list(panels)
        if len(drawn) > 1:
            low = min(axes.get_ylim()[0] for axes in drawn)
            high = max(axes.get_ylim()[1] for axes in drawn)
            for axes in drawn:
                axes.set_ylim(low, high)
        for axes in axes_row[len(panels) :]:
            axes.set_axis_off()
    for c in range(columns):
        last = [axes for axes in grid[:, c] if axes.axison][-1]
        last.set_xlabel(xlabel)
        last.tick_params(labelbottom=True)
    legend_below(figure, grid.reshape(-1))
    return figure


@styled
def entropy_ecdfs(panels: Mapping[str, Mapping[str, Any]], *, classes: int) -> Figure:
    """Empirical distribution functions of predictive entropies, an axis per experiment.

    ``panels``: title -> label -> entropies in nats, one per observation. Out of domain the ideal is the
    lower right corner: every prediction as uniform as can be.
    """
    figure = new_figure(4.6 * len(panels), 4.3)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    largest = math.log(classes)
    for axes, (title, series) in zip(grid, panels.items()):
        for position, (label, values) in enumerate(series.items()):
            colour, _ = method_style(label, position)
            at, share = ecdf(array(values))
            axes.plot(
                at,
                share,
                "--" if is_sparse(label) else "-",
                color=colour,
                label=label,
                drawstyle="steps-post",
            )
        axes.axvline(largest, color=BLACK, linestyle=":", linewidth=0.9)
        axes.annotate(
            "uniform",
            (largest, 0.5),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="center",
            fontsize=7.0,
            color=GREY,
        )
        axes.set(
            title=title,
            xlabel="entropy of the averaged prediction (nats)",
            xlim=(0.0, 1.02 * largest),
            ylim=(0.0, 1.0),
        )
    grid[0].set_ylabel("share of the observations")
    legend_below(figure, grid)
    return figure


def ecdf(values: Any, points: int = 400) -> tuple[Any, Any]:
    """The empirical distribution function from the left end, at most ``points`` of its steps."""
    value, share = (array(part) for part in metrics.ecdf(torch.as_tensor(array(values))))
    if value.size > points:
        chosen = np.unique(np.linspace(0, value.size - 1, points).round().astype(int))
        value, share = value[chosen], share[chosen]
    return np.concatenate([[0.0], value]), np.concatenate([[0.0], share])
