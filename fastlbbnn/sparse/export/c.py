"""Writes a selected network as C99 source, to be compiled into a program that has nothing else.

    export_c(small, "firmware/src", name="digits")

gives ``digits.h`` and ``digits.c``. They allocate nothing, call no library, keep the weights in
constant arrays and hold activations on the stack. Indices take as few bytes as they fit in. With ``lanes=True``
the same functions are straight-line code for speed (c_lanes.py).

Where rows are prepared before the network takes them, ``digits_prepare`` does that, and where targets were
scaled ``digits_in_units`` puts their units back, both in double precision, with the bits of
``fastlbbnn.data.Preparation``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._util.files import replace_file
from ...data.preparation import NUMBER, Preparation
from ..description import Description
from ..model import SparseModel
from ..network import SparseLayer, SparseNetwork
from .c_lanes import lanes_source
from .c_text import array, double_literal, floats, indices
from .naming import layers_with_effect, network_and_description

_HEADER = """\
/* {title}
 *
 * Written by fastlbbnn {version}; {weights} weights. C99, no library, no allocation.
 */
#ifndef {guard}
#define {guard}

#include <stddef.h>

#define {upper}_INPUTS {inputs}
#define {upper}_OUTPUTS {outputs}

#ifdef __cplusplus
extern "C" {{
#endif

{prepare}/* The outputs of the network at its mean weights (for a classifier: logits) for one input.
 * x: {upper}_INPUTS floats; y: {upper}_OUTPUTS floats, not overlapping x.{classes} */
void {name}_predict(const float *x, float *y);

/* The same for `batch` inputs, one after the other: x [batch][{upper}_INPUTS],
 * y [batch][{upper}_OUTPUTS]. */
void {name}_predict_batch(const float *x, float *y, size_t batch);
{in_units}
#ifdef __cplusplus
}}
#endif

#endif
"""


_PREPARE = """\
#define {upper}_COLUMNS {columns}

/* The inputs of the network for one raw row.{names}
 * row: {upper}_COLUMNS doubles, of a category the index of its value; x: {upper}_INPUTS floats. */
void {name}_prepare(const double *row, float *x);

"""

_IN_UNITS = """
/* Outputs in the units of the data: y and answer have {upper}_OUTPUTS values. */
void {name}_in_units(const float *y, double *answer);
"""


def export_c(
    model: SparseModel | SparseNetwork, directory: str | PathLike[str], name: str = "network", *,
    lanes: bool = False,
) -> tuple[Path, Path]:
    """Write ``<name>.c`` and ``<name>.h`` to a directory, which is made if it is missing.

    The function ``<name>_predict`` gives the outputs at the mean weights for prepared inputs, ``<name>_prepare``
    makes these of a raw row and ``<name>_in_units`` answers of outputs, where the model has something to
    prepare or to put back; sampled predictions are not part of the source. Returns the paths of the source and
    the header.

    Args:
        name: begins the names of the functions and files. Characters that C has no place for become
            underscores: "my-net" gives ``my_net_predict``.
        lanes: the same functions in the vector form, for speed: straight-line code that computes many rows of
            a batch side by side. Meant for compilers that know the processor (``-O2 -march=native``) and for
            networks of up to some ten thousand weights, each of which is some 30 bytes of code; the units of 8 to
            32 rows are on the stack.
    """
    network, about = network_and_description(model)
    identifier = c_identifier(name)
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(
            f"{directory} is a file; expected a directory to write the source to"
        )
    source = (lanes_source if lanes else _source)(network, identifier)
    source += _preparation_code(about.preparation, identifier)
    header = _header(network, about, identifier)
    directory.mkdir(parents=True, exist_ok=True)
    paths = directory / f"{identifier}.c", directory / f"{identifier}.h"
    for path, text in zip(paths, (source, header)):
        with replace_file(path) as temporary:
            temporary.write_text(text, encoding="ascii")
    return paths


def c_identifier(name: str) -> str:
    """``name`` with what an identifier of C cannot have replaced. ValueError if nothing is left."""
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; expected a string")
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not re.search(r"[A-Za-z0-9]", identifier):
        raise ValueError(f"name={name!r} has no letter or digit; expected a name for C functions")
    if len(identifier) > 48:
        raise ValueError(f"name={name!r} has {len(identifier)} characters; expected at most 48")
    # Names that begin with an underscore belong to the compiler.
    if not identifier[0].isalpha():
        identifier = "network_" + identifier.lstrip("_")
    return identifier


def _header(network: SparseNetwork, about: Description, name: str) -> str:
    from ... import __version__

    preparation, prepare, in_units = about.preparation, "", ""
    if preparation is not None and not preparation.is_as_is:
        prepare = _PREPARE.format(
            upper=name.upper(), name=name, columns=len(preparation.columns),
            names=_comment(" Columns", preparation.names),
        )
    if preparation is not None and preparation.target.is_scaled:
        in_units = _IN_UNITS.format(upper=name.upper(), name=name)
    return _HEADER.format(
        prepare=prepare,
        in_units=in_units,
        classes=_comment("\n * Classes", about.class_names),
        title=f"{network.in_features} inputs ({network.inputs.size} used), "
        f"{network.out_features} outputs",
        version=__version__,
        weights=network.nnz,
        guard=f"{name.upper()}_H",
        upper=name.upper(),
        name=name,
        inputs=network.in_features,
        outputs=network.out_features,
    )


def _comment(what: str, names: Sequence[str] | None) -> str:
    """Names for a comment, which nothing in them can end."""
    if names is None:
        return ""
    shown = [re.sub(r"[^A-Za-z0-9 _.=+-]", "?", name)[:40] for name in names[:50]]
    more = ", ..." if len(names) > 50 else ""
    return f"{what}: {', '.join(shown)}{more}."


def _doubles(name: str, values: Sequence[float]) -> str:
    return array("double", name, [double_literal(v) for v in values])


def _preparation_code(preparation: Preparation | None, name: str) -> str:
    """The functions that prepare rows and put units back, as far as there is something to do."""
    parts: list[str] = []
    if preparation is not None and not preparation.is_as_is:
        parts += [
            "\n", _doubles("column_mean", preparation.mean.tolist()),
            _doubles("column_scale", preparation.scale.tolist()),
            f"\nvoid {name}_prepare(const double *row, float *x) {{\n", _prepare_body(preparation), "}\n",
        ]  # fmt: skip
    if preparation is not None and (scale := preparation.target.scale) is not None:
        mean, each = preparation.target.mean, "i" if len(scale) > 1 else "0"
        parts += [
            "\n", _doubles("target_mean", mean or ()), _doubles("target_scale", scale),
            f"\nvoid {name}_in_units(const float *y, double *answer) {{\n  size_t i;\n",
            f"  for (i = 0; i < {name.upper()}_OUTPUTS; ++i)\n",
            f"    answer[i] = (double)y[i] * target_scale[{each}] + target_mean[{each}];\n}}\n",
        ]  # fmt: skip
    return "".join(parts)


def _prepare_body(preparation: Preparation) -> str:
    if not preparation.has_categories:
        count = len(preparation.columns)
        return (
            f"  size_t i;\n  for (i = 0; i < {count}; ++i)\n"
            "    x[i] = (float)((row[i] - column_mean[i]) / column_scale[i]);\n"
        )
    lines, at = [], 0
    for i, column in enumerate(preparation.columns):
        if column.kind == NUMBER:
            lines.append(f"  x[{at}] = (float)((row[{i}] - column_mean[{i}]) / column_scale[{i}]);\n")
        for code in range(len(column.values)):
            lines.append(f"  x[{at + code}] = row[{i}] == {code}.0 ? 1.0f : 0.0f;\n")
        at += column.inputs
    return "".join(lines)


def _layer_arrays(i: int, layer: SparseLayer, columns: NDArray[Any]) -> str:
    """``counts``: how many weights each row has; smaller numbers than offsets."""
    if layer.rows == 0:
        return ""
    parts = [f"/* Layer {i}: {layer.cols} to {layer.rows} units, {layer.nnz} weights. */\n"]
    if layer.nnz:
        parts += [
            indices(f"counts_{i}", np.diff(layer.row_offsets)),
            indices(f"columns_{i}", columns),
            floats(f"weights_{i}", layer.mean),
        ]
    return "".join([*parts, floats(f"bias_{i}", layer.bias_mean), "\n"])


def _layer_code(i: int, layer: SparseLayer, source: str, target: str) -> str:
    """target[row] = relu(bias[row] + sum over k of weights[k] * source[columns[k]])."""
    if layer.rows == 0:
        return ""
    lines = ["  k = 0;"] if layer.nnz else []
    lines += [f"  for (row = 0; row < {layer.rows}; ++row) {{", f"    float sum = bias_{i}[row];"]
    if layer.nnz:
        lines += [
            f"    const size_t end = k + counts_{i}[row];",
            f"    for (; k < end; ++k) sum += weights_{i}[k] * {source}[columns_{i}[k]];",
        ]
    # Written so that NaN passes.
    result = "sum < 0.0f ? 0.0f : sum" if layer.relu else "sum"
    return "\n".join([*lines, f"    {target}[row] = {result};", "  }", ""])


def _source(network: SparseNetwork, name: str) -> str:
    layers = layers_with_effect(network)
    arrays, code = [], []
    # Hidden layers take turns on two buffers.
    sizes = {"even": 0, "odd": 0}
    source = "x"
    for i, layer in layers:
        columns = network.inputs[layer.columns] if i == 0 else layer.columns
        target = "y" if i == layers[-1][0] else "even" if i % 2 == 0 else "odd"
        if target != "y":
            sizes[target] = max(sizes[target], layer.rows)
        arrays.append(_layer_arrays(i, layer, columns))
        code.append(_layer_code(i, layer, source, target))
        source = target
    buffers = [f"  float {buffer}[{size}];\n" for buffer, size in sizes.items() if size]
    weights = any(layer.nnz for _, layer in layers)
    upper = name.upper()
    return "".join(
        [
            f'#include "{name}.h"\n\n#include <stdint.h>\n\n',
            *arrays,
            f"void {name}_predict(const float *x, float *y) {{\n",
            *buffers,
            "  size_t row, k;\n" if weights else "  size_t row;\n",
            "" if layers[0][0] == 0 and layers[0][1].nnz else "  (void)x;\n",
            *code,
            "}\n\n",
            f"void {name}_predict_batch(const float *x, float *y, size_t batch) {{\n",
            "  size_t i;\n",
            f"  for (i = 0; i < batch; ++i) {name}_predict(x + i * {upper}_INPUTS, "
            f"y + i * {upper}_OUTPUTS);\n",
            "}\n",
        ]
    )
