"""The vector form of the C export: a network as straight-line code over many rows of a batch at a time.

Vectors hold one unit of 4, 8 or 16 rows of the batch, side by side, and two of them are computed together. A
weight is a multiplication and addition of each, with its value and its places in the code: nothing is looked
up, and nothing is decided. The inputs of a panel are transposed and used before the next one is read, so that
they stay in the first-level cache. The templates are in c_lanes_text.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..network import SparseLayer, SparseNetwork
from .c_lanes_text import MACROS, PREDICT, READ_ROWS, READ_SOME, TYPES, WRITE_ROWS
from .c_text import float_literal, floats, indices
from .naming import layers_with_effect

#: Lines of a function: for twice the length compilers take more than twice the time.
_PART = 400

#: Weights of a row that go into two sums: one would wait for its own additions.
_LONG = 8

#: Columns that are read together.
_WINDOW = 8

#: Units that lie within reach of a short address, which is half as long: instructions, too, come from a cache.
_NEAR = 128

#: Units that inputs are read to before they are used.
_PANEL = _NEAR - _WINDOW


@dataclass(frozen=True)
class Reading:
    """How inputs become units: a panel of them at a time, eight neighbouring columns in one window."""

    columns: NDArray[np.int64]  # [windows], the first column of each
    first_units: NDArray[np.int64]  # [windows], the unit that it becomes
    units: NDArray[np.int64]  # [inputs], the unit of each
    panels: list[tuple[int, int, int, int]]  # first window, end, first input, end
    most_units: int  # of a panel


def reading_of(inputs: NDArray[np.int32], in_features: int) -> Reading:
    """Units are where the windows leave them; where rows are too short for windows, one after the other."""
    columns: list[int] = []
    first_units: list[int] = []
    units = np.empty(inputs.size, np.int64)
    panels: list[tuple[int, int, int, int]] = []
    width = _WINDOW if in_features >= _WINDOW else 1
    i = free = most = window = begin = 0
    while i < inputs.size:
        # At a multiple of eight, as rows mostly are: elsewhere half of all reads would touch two cache lines.
        first = min(int(inputs[i]) // width * width, in_features - width)
        last = int(np.searchsorted(inputs, first + width))
        columns.append(first)
        first_units.append(free)
        units[i:last] = free + inputs[i:last] - first
        most = max(most, free + width)
        free = int(units[last - 1]) + 1
        i = last
        if free >= _PANEL or i == inputs.size:
            panels.append((window, len(columns), begin, i))
            window, begin, free = len(columns), i, 0
    return Reading(np.array(columns, np.int64), np.array(first_units, np.int64), units, panels, most)


def lanes_source(network: SparseNetwork, name: str) -> str:
    """The source but for the preparation; see ``export_c``."""
    layers = layers_with_effect(network)
    upper = name.upper()
    text = [f'#include "{name}.h"\n\n#include <stdint.h>\n\n', TYPES.format(upper=upper), MACROS.format(upper=upper)]
    # Hidden layers take turns on two buffers.
    sizes = {"in": 0, "even": 0, "odd": 0, "out": network.out_features}
    source, code = "in", ["  (void)x;\n"]
    for i, layer in layers:
        target = "out" if i == layers[-1][0] else "even" if i % 2 == 0 else "odd"
        sizes[target] = max(sizes[target], layer.rows)
        text.append(f"\n/* Layer {i}: {layer.cols} to {layer.rows} units, {layer.nnz} weights. */\n")
        if i == 0 and layer.nnz:
            reading = reading_of(network.inputs, network.in_features)
            sizes["in"] = reading.most_units
            in_windows = network.in_features >= _WINDOW
            text.append(_reading_code(reading, network.inputs, in_windows, upper))
            functions, calls = _panels(layer, reading)
            code = []
            for (window, end_window, first, end), called in zip(reading.panels, calls):
                fast = f"read_rows(x, in, {window}, {end_window})"
                slow = f"  read_some(x, rows, in, {first}, {end});\n"
                code.append(_where_transposed(fast, slow, in_windows))
                code += [f"  {function}(in, {target});\n" for function in called]
        else:
            begins, ends = layer.row_offsets[:-1], layer.row_offsets[1:]
            functions = _parts(f"layer_{i}", layer, np.arange(layer.rows), begins, ends)
            takes = f"{source}, " if layer.nnz else ""
            code += [f"  {function}({takes}{target});\n" for function in functions]
        text += functions.values()
        source = target
    if network.out_features >= 4:
        text.append(WRITE_ROWS.format(upper=upper))
    buffers = ", ".join(f"{buffer}[{size}]" for buffer, size in sizes.items() if size)
    write = _where_transposed("write_rows(out, y)", "", network.out_features >= 4)
    text.append(PREDICT.format(name=name, upper=upper, buffers=buffers, code="".join(code), write=write))
    return "".join(text)


def _where_transposed(fast: str, otherwise: str, possible: bool) -> str:
    """Code for whole vectors of rows, and for all else."""
    if not possible:
        return otherwise
    return f"#ifdef TRANSPOSED\n  if (rows == ROWS)\n    {fast};\n  else\n#endif\n{otherwise}"


def _reading_code(reading: Reading, inputs: NDArray[np.int32], in_windows: bool, upper: str) -> str:
    """The functions that read inputs."""
    text = ""
    if in_windows:
        tables = indices("window_columns", reading.columns) + indices("window_units", reading.first_units)
        text = READ_ROWS.format(upper=upper, tables=tables)
    tables = indices("input_columns", inputs) + indices("input_units", reading.units)
    return text + READ_SOME.format(upper=upper, tables=tables)


def _panels(layer: SparseLayer, reading: Reading) -> tuple[dict[str, str], list[list[str]]]:
    """The functions of the first layer, and the names of those of each panel."""
    offsets, count = layer.row_offsets, len(reading.panels)
    panel_of = np.searchsorted([end for *_, end in reading.panels], layer.columns, side="right")
    # Columns ascend, so a row's weights of one panel are neighbours.
    starts = [
        offsets[:-1] + np.bincount(layer.row_of[panel_of < panel], minlength=layer.rows)
        for panel in range(count + 1)
    ]
    functions: dict[str, str] = {}
    calls: list[list[str]] = []
    for panel, (begins, ends) in enumerate(pairwise(starts)):
        rows = np.flatnonzero((ends > begins) | ((panel == 0) & (np.diff(offsets) == 0)))
        made = _parts(f"layer_0_panel_{panel}", layer, rows, begins[rows], ends[rows], reading.units)
        functions |= made
        calls.append(list(made))
    return functions, calls


def _parts(
    prefix: str, layer: SparseLayer, rows: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any],
    units: NDArray[np.int64] | None = None,
) -> dict[str, str]:
    """y[row] = relu(bias[row] + sum of weight * x[unit]) for weights [begin, end) of rows; code by function.

    A row's first weight comes with the bias, its last one with the ReLU. ``units``: of the layer's columns;
    None: the columns themselves.
    """
    functions: dict[str, str] = {}
    lines: list[str] = []
    weights: list[float] = []

    def finish() -> None:
        name = f"{prefix}_{len(functions)}"
        two = any("JOIN" in line for line in lines)
        head = f"OUT_OF_LINE static void {name}({'const unit *x, ' if layer.nnz else ''}unit *y) {{\n"
        head += "  SUM(s);\n  SUM(t);\n" if two else "  SUM(s);\n"
        if weights:
            padded = np.array([*weights, *[0.0] * (-len(weights) % 4)], np.float32)
            head = f"{floats(f'{name}_weights', padded)}{head}  const float *weights = {name}_weights;\n"
            head += f"  four_weights w;\n  HIDDEN(weights);\n  x += {_NEAR // 2};\n  HIDDEN(x);\n"
        elif layer.nnz:
            head += "  (void)x;\n"
        functions[name] = f"{head}{''.join(lines)}}}\n"
        lines.clear()
        weights.clear()

    for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist()):
        columns = layer.columns[begin:end] if units is None else units[layer.columns[begin:end]]
        is_first, is_last = begin == layer.row_offsets[row], end == layer.row_offsets[row + 1]
        bias = float_literal(layer.bias_mean[row])
        lines.append(f"  SET(s, {bias});\n" if is_first else f"  GET(s, y[{row}]);\n")
        sums = "st" if columns.size >= _LONG else "s"
        if sums == "st":
            lines.append("  SET(t, 0.0f);\n")
        for column, weight in zip(columns.tolist(), layer.mean[begin:end].tolist()):
            k = len(weights) % 4
            if k == 0:
                lines.append(f"  w = FOUR(weights + {len(weights)});\n")
            lines.append(f"  ADD({sums[k % len(sums)]}, w, {k}, x[{column - _NEAR // 2}]);\n")
            weights.append(weight)
        if sums == "st":
            lines.append("  JOIN(s, t);\n")
        if is_last and layer.relu:
            lines.append("  POSITIVE(s);\n")
        lines.append(f"  PUT(y[{row}], s);\n")
        if len(lines) >= _PART:
            finish()
    if lines:
        finish()
    return functions
