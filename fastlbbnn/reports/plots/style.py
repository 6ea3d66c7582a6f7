"""One look for every figure: colours that colour-blind readers tell apart, sizes, and saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot: nothing is shown, no window system is
asked for, and nothing has to be closed.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..._util.files import replace_file

try:
    import matplotlib
    from cycler import cycler
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(
        "figures need matplotlib, not installed here: pip install matplotlib"
    ) from error

#: Okabe and Ito's palette, which stays apart under the common forms of colour blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7F7F7F"
CYCLE = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, GREY)

#: One value after the other on a scale from nothing to much, and on one around zero.
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"

#: Method -> its colour and marker, the same in every figure.
METHOD_STYLES: dict[str, tuple[str, str]] = {
    "LBBNN-GP-MF": (BLUE, "o"),
    "LBBNN-GP-MVN": (SKY, "s"),
    "LBBNN-GP-LFMVN": (GREEN, "^"),
    "LBBNN-fixed": (YELLOW, "v"),
    "BNN-GP-MF": (VERMILLION, "D"),
    "BNN-MGP-MF": (ORANGE, "P"),
    "BNN-GP-CMF": (PURPLE, "X"),
    "BNN-HP-MF": (BLACK, "*"),
    "BNN-NJ-MF": ("#8B5A2B", "<"),
    "FNN": (GREY, ">"),
}

_STYLE: dict[str, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "figure.titlesize": 11.0,
    "legend.fontsize": 8.0,
    "legend.frameon": True,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "axes.prop_cycle": cycler(color=CYCLE),
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    # Element names in an SVG are random without it: the same figure twice gives the same file.
    "svg.hashsalt": "fastlbbnn",
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """The function draws in the project's style, whatever the caller's is."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        settings: Any = {**cast("dict[str, Any]", matplotlib.rcParamsDefault), **_STYLE}
        with matplotlib.rc_context(settings):
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches that keeps its parts from overlapping."""
    return Figure(figsize=(width, height), layout="constrained")


def method_style(label: str, position: int = 0) -> tuple[str, str]:
    """Colour and marker of the method that ``label`` starts with; by position for any other label."""
    found = [name for name in METHOD_STYLES if label == name or label.startswith((f"{name} ", f"{name},"))]
    if found:
        return METHOD_STYLES[max(found, key=len)]
    return CYCLE[position % len(CYCLE)], "osD^vPX*"[position % 8]


def array(values: Any) -> NDArray[Any]:
    """Tensors, lists and arrays as an array on the CPU."""
    detach = getattr(values, "detach", None)
    return np.asarray(values if detach is None else detach().cpu().numpy())


@styled
def save(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write the figure, whole or not at all; the format is the name's ending (png, svg or pdf)."""
    path = Path(path)
    kind = path.suffix[1:].lower()
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"{path.name}: expected a name that ends in .png, .svg or .pdf")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=_metadata(kind))
    return path


@styled
def as_bytes(figure: Figure, kind: str = "png", dpi: int = 130) -> bytes:
    """The figure's file, for pages that carry their figures inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=_metadata(kind))
    return buffer.getvalue()


def _metadata(kind: str) -> dict[str, None] | None:
    # A date would make two files of the same figure differ.
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)


def hide_axes(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def legend_below(figure: Figure, axes: Iterable[Axes], columns: int = 4) -> None:
    """One legend for all axes, under the figure, each label once."""
    entries: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=min(columns, len(entries)),
        )


def draw_input(axes: Axes, x: Any, shape: tuple[int, ...]) -> None:
    """One observation: as an image where it is one, else as a curve over its inputs."""
    values = array(x).reshape(-1)
    if len(shape) == 2:
        axes.imshow(values.reshape(shape), cmap="gray_r", interpolation="nearest")
    elif len(shape) == 3 and shape[0] in (1, 3):
        image = np.moveaxis(values.reshape(shape), 0, -1)
        low, high = image.min(), image.max()
        axes.imshow((image - low) / ((high - low) or 1.0), interpolation="nearest", cmap="gray_r")
    else:
        axes.plot(values, color="#444444", linewidth=0.7)
        axes.margins(x=0.0)
    hide_axes(axes)
