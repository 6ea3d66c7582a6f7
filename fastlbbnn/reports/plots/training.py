"""How a network learned: the bound and its parts, the structure and the accuracy over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from .style import BLUE, GREEN, GREY, ORANGE, VERMILLION, new_figure, styled


def stages(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Runs of rows of one stage: name, first and last row, counted from 1."""
    found: list[tuple[str, int, int]] = []
    for position, row in enumerate(history, start=1):
        name = str(row["stage"])
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], position)
        else:
            found.append((name, position, position))
    return found


def _column(history: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.floating]:
    return np.array([float(row.get(name, float("nan"))) for row in history])


def _limit_to_late(axes: Axes, values: Sequence[NDArray[np.floating]]) -> None:
    """The first epochs move so far that the rest would look flat: they may leave the picture."""
    kept = [v[len(v) // 20 :] for v in values]
    shown = np.concatenate([v[np.isfinite(v)] for v in kept])
    if shown.size:
        low, high = float(shown.min()), float(shown.max())
        margin = 0.06 * (high - low) or 0.05 * (abs(high) or 1.0)
        axes.set_ylim(low - margin, high + margin)


def _mark_stages(axes: Axes, found: Sequence[tuple[str, int, int]], named: bool) -> None:
    for i, (_, first, last) in enumerate(found):
        if i % 2:
            axes.axvspan(first - 0.5, last + 0.5, color="#F2F2F2", zorder=0, linewidth=0.0)
        if i:
            axes.axvline(first - 0.5, color=GREY, linestyle=":", linewidth=0.9)
        if named:
            axes.annotate(
                f"{i + 1}",
                ((first + last) / 2.0, 1.01),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="bottom",
                fontsize=7.5,
                color="#444444",
            )


@styled
def training_curves(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Bound, log-likelihood and KL, structure, accuracy: one point per epoch, the stages marked.

    ``history``: rows with stage, loss (minus the bound) and log_likelihood (both per observation, in nats),
    kl (nats), density, mean_inclusion and train_accuracy; what is missing or NaN is left out. Stages stand
    side by side in the order of the rows, also those that began from the same network.
    """
    if not history:
        raise ValueError("no epochs to draw: the history is empty")
    epoch = np.arange(1, len(history) + 1)
    parts = {name: _column(history, name) for name in
             ("loss", "log_likelihood", "kl", "density", "mean_inclusion", "train_accuracy")}  # fmt: skip
    has = {name: bool(np.isfinite(values).any()) for name, values in parts.items()}
    bayesian = has["kl"] and bool(np.nanmax(np.abs(parts["kl"])) > 0.0)
    # A network without indicators has all its weights all the time: nothing to see.
    structured = has["density"] and bool(np.nanmin(parts["mean_inclusion"]) < 1.0)
    wanted = ["bound", *(["kl"] if bayesian else []), *(["structure"] if structured else [])]
    wanted += ["accuracy"] if has["train_accuracy"] else []
    rows = -(-len(wanted) // 2)
    figure = new_figure(8.6, 2.5 * rows + 0.5)
    grid = figure.subplots(rows, 2, squeeze=False, sharex=True).reshape(-1)
    drawn = dict(zip(wanted, grid))
    for axes in grid[len(wanted) :]:
        axes.set_axis_off()
    style: dict[str, Any] = {"marker": "o", "markersize": 3.0} if len(epoch) < 15 else {}

    axes = drawn["bound"]
    axes.set_ylabel("nats per observation")
    if bayesian:
        axes.plot(epoch, parts["log_likelihood"], color=GREEN, label="log-likelihood", **style)
        axes.plot(epoch, -parts["loss"], color=BLUE, label="ELBO", **style)
        _limit_to_late(axes, [-parts["loss"], parts["log_likelihood"]])
        axes.set_title("Evidence lower bound\n")
        axes.legend(loc="lower right")
        axes = drawn["kl"]
        axes.plot(epoch, parts["kl"], color=VERMILLION, **style)
        _limit_to_late(axes, [parts["kl"]])
        axes.set(ylabel="nats", title="KL to the prior\n")
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    else:
        axes.plot(epoch, parts["log_likelihood"], color=BLUE, **style)
        _limit_to_late(axes, [parts["log_likelihood"]])
        axes.set_title("Log-likelihood\n")
    if "structure" in drawn:
        axes = drawn["structure"]
        axes.plot(epoch, parts["mean_inclusion"], color=ORANGE, label="mean inclusion", **style)
        axes.plot(epoch, parts["density"], color=BLUE, label="density, median model", **style)
        axes.set(ylabel="share of the weights", ylim=(0.0, 1.03), title="Structure\n")
        # Where the curves are not: below them if they stay high.
        high = max(parts["mean_inclusion"][-1], parts["density"][-1]) > 0.6
        axes.legend(loc="lower right" if high else "upper right")
    if "accuracy" in drawn:
        axes = drawn["accuracy"]
        axes.plot(epoch, parts["train_accuracy"], color=BLUE, **style)
        _limit_to_late(axes, [parts["train_accuracy"]])
        axes.set(ylabel="accuracy", title="Accuracy on the training data, one draw\n")
    found = stages(history)
    for axes in drawn.values():
        axes.set_xlabel("epoch")
        axes.tick_params(labelbottom=True)
        axes.set_xlim(0.5, len(epoch) + 0.5)
        _mark_stages(axes, found, named=len(found) > 1)
    if len(found) > 1:
        text = "    ".join(f"{i + 1} {name}" for i, (name, _, _) in enumerate(found))
        figure.supxlabel(text, fontsize=8.0, color="#444444")
    return figure
