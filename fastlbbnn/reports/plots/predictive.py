"""What the network believes about single observations: bars over classes beside the image.

The paper's figures of uncertainty: 100 networks are drawn from the posterior. A bar is the share of
them that vote for a class, a yellow line the class probability averaged over them; the dashed line is
where a decision is made rather than a doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from .style import BLUE, GREEN, ORANGE, VERMILLION, array, draw_input, hide_axes, new_figure, styled

#: Characters of a class name under its bar: more would run into the row below.
LONGEST_NAME = 11

#: Characters of a line beside the bars.
LONGEST_LINE = 18

#: Averaged probability from which on a decision is made.
CONFIDENT = 0.95


@dataclass(frozen=True)
class Example:
    """One observation and what the draws of the network said about it."""

    x: NDArray[np.floating]
    #: Share of the draws that vote for each class, and the class probabilities averaged: [classes].
    votes: NDArray[np.floating]
    mean: NDArray[np.floating]
    #: The class, or None where it is none of the network's.
    truth: int | None = None
    #: Lines shown instead of the image: a row of a table is neither image nor curve.
    words: tuple[str, ...] = ()

    @staticmethod
    def of(x: Any, probabilities: Any, truth: int | None = None, words: Sequence[str] = ()) -> Example:
        """From the class probabilities of every draw, ``probabilities: [draws, classes]``."""
        p = array(probabilities)
        if p.ndim != 2:
            raise ValueError(f"probabilities is {list(p.shape)}; expected [draws, classes]")
        votes = np.bincount(p.argmax(1), minlength=p.shape[1]) / len(p)
        return Example(array(x), votes, p.mean(0), None if truth is None else int(truth), tuple(words))

    @property
    def predicted(self) -> int:
        """The class with the largest averaged probability."""
        return int(self.mean.argmax())

    @property
    def doubtful(self) -> bool:
        return float(self.mean.max()) < CONFIDENT


def _bars(axes: Axes, example: Example, names: Sequence[str], red: bool) -> None:
    classes = np.arange(len(example.votes))
    colours = [BLUE] * len(classes)
    if red and example.predicted != example.truth:
        colours[example.predicted] = VERMILLION
    if example.truth is not None:
        colours[example.truth] = GREEN
    axes.bar(classes, 100.0 * example.votes, color=colours, width=0.78)
    axes.hlines(100.0 * example.mean, classes - 0.46, classes + 0.46, color=ORANGE, linewidth=2.2)
    axes.axhline(100.0 * CONFIDENT, color="black", linestyle="--", linewidth=0.8)
    axes.set_ylim(0.0, 103.0)
    axes.set_yticks([0, 50, 100])
    axes.set_xlim(-0.6, len(classes) - 0.4)
    axes.grid(False, axis="x")
    # Long names often differ in their ends: "variant 1", "variant 2".
    short = LONGEST_NAME - 5
    names = [name if len(name) <= LONGEST_NAME else f"{name[:4]}…{name[-short:]}" for name in names]
    long = max(map(len, names)) > 2
    axes.set_xticks(classes, names, rotation=90 if long else 0, fontsize=6.0 if long else 7.0)
    axes.tick_params(axis="x", length=0, pad=2)
    axes.tick_params(axis="y", labelsize=6.5)
    if example.truth is not None:
        # The class is told by its label, too, for those who do not see green.
        axes.get_xticklabels()[example.truth].set(fontweight="bold", color=GREEN)


def _write(axes: Axes, words: Sequence[str]) -> None:
    """Lines of text, each shortened to what stands beside bars."""
    lines = [line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…" for line in words]
    how: dict[str, Any] = {"va": "center", "fontsize": 5.5, "linespacing": 1.5}
    axes.text(0.0, 0.5, "\n".join(lines), transform=axes.transAxes, **how)
    hide_axes(axes)


def _legend(figure: Figure, truths: bool, red: bool) -> None:
    handles: list[Any] = [Patch(color=GREEN, label="votes for the true class (bold)")] if truths else []
    if red:
        handles.append(Patch(color=VERMILLION, label="votes for the wrong prediction"))
    handles += [
        Patch(color=BLUE, label="votes for other classes"),
        Line2D([], [], color=ORANGE, linewidth=2.2, label="averaged class probability"),
        Line2D([], [], color="black", linestyle="--", linewidth=0.8, label="95 %: average above it decides"),
    ]
    # An entry takes up to 2.4 inches: in narrow figures two rows of them.
    fitting = max(1, int(figure.get_figwidth() / 2.4))
    columns = len(handles) if fitting >= len(handles) else -(-len(handles) // 2)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _panels(
    figure: Any,
    examples: Sequence[Example],
    columns: int,
    names: Sequence[str],
    shape: tuple[int, ...],
    red: bool,
    rows: int | None = None,
) -> None:
    rows = rows or -(-len(examples) // columns)
    grid = figure.subplots(
        rows,
        2 * columns,
        squeeze=False,
        width_ratios=[1.0, 2.6] * columns,
    )
    for place in range(rows * columns):
        image, bars = grid[place // columns, 2 * (place % columns) :][:2]
        if place >= len(examples):
            image.set_axis_off()
            bars.set_axis_off()
            continue
        if examples[place].words:
            _write(image, examples[place].words)
        else:
            draw_input(image, examples[place].x, shape)
        _bars(bars, examples[place], names, red)


def class_labels(names: Sequence[str] | None, classes: int) -> list[str]:
    return [str(c) for c in range(classes)] if names is None else [str(name) for name in names]


@styled
def predictive_bars(
    groups: Mapping[str, Sequence[Example]],
    *,
    input_shapes: Mapping[str, tuple[int, ...]],
    class_names: Sequence[str] | None = None,
    columns: int = 2,
) -> Figure:
    """Votes and averaged probabilities of single observations, one group beside the other.

    ``groups``: title -> examples, e.g. in-domain and out-of-domain; ``input_shapes``: the same titles.
    """
    filled = {title: list(examples) for title, examples in groups.items() if examples}
    if not filled:
        raise ValueError("no examples to draw; expected at least one group with one example")
    rows = max(-(-len(examples) // columns) for examples in filled.values())
    figure = new_figure(2.7 * columns * len(filled), 1.05 * rows + 0.75)
    parts = figure.subfigures(1, len(filled), squeeze=False, wspace=0.03)[0]
    for part, (title, examples) in zip(parts, filled.items()):
        names = class_labels(class_names, len(examples[0].votes))
        part.suptitle(title)
        _panels(part, examples, columns, names, tuple(input_shapes[title]), red=False, rows=rows)
    known = any(e.truth is not None for examples in filled.values() for e in examples)
    _legend(figure, truths=known, red=False)
    return figure


@styled
def misclassified(
    examples: Sequence[Example],
    *,
    input_shape: tuple[int, ...],
    class_names: Sequence[str] | None = None,
    columns: int = 4,
    title: str | None = None,
) -> Figure:
    """Wrongly classified observations: green the true class, red the predicted one."""
    if not examples:
        raise ValueError("no examples to draw; expected at least one wrongly classified observation")
    rows = -(-len(examples) // columns)
    figure = new_figure(2.8 * columns, 1.15 * rows + 0.9)
    if title is not None:
        figure.suptitle(title)
    names = class_labels(class_names, len(examples[0].votes))
    part = figure.subfigures(1, 1)
    _panels(part, examples, columns, names, tuple(input_shape), red=True)
    _legend(figure, truths=True, red=True)
    return figure
