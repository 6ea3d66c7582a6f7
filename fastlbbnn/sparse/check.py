"""Whether arrays make a network: asked once, before any of them is indexed or handed to C++.

What was asked is a ``CheckedNetwork``; whatever computes or writes takes one and does not ask again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import FORMATS
from .network import SparseLayer, SparseNetwork

#: The most units and weights that a layer may have: indices and offsets in C++ are 32 bits wide.
LIMIT = 2**31 - 1


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def _check_array(name: str, a: object, dtypes: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    if not isinstance(a, np.ndarray):
        raise ValueError(f"{name} is a {type(a).__name__}; expected a numpy array")
    _require(
        a.dtype in [np.dtype(d) for d in dtypes],
        f"{name} is {a.dtype}; expected {' or '.join(np.dtype(d).name for d in dtypes)}",
    )
    _require(a.shape == shape, f"{name} is {list(a.shape)}; expected {list(shape)}")
    _require(a.flags.c_contiguous, f"{name} is not contiguous")


def check_offsets(name: str, offsets: NDArray[Any], total: int) -> None:
    """Offsets start at 0, never fall and end at ``total``."""
    _require(
        offsets[0] == 0 and offsets[-1] == total and bool((offsets[1:] >= offsets[:-1]).all()),
        f"{name} goes from {offsets[0]} to {offsets[-1]}; expected to rise from 0 to {total}",
    )


def check_ascending(name: str, columns: NDArray[Any], offsets: NDArray[Any], limit: int) -> None:
    """Indices below ``limit``, rising within every row."""
    if columns.size == 0:
        return
    wide = columns.astype(np.int64)
    low, high = int(wide.min()), int(wide.max())
    _require(0 <= low and high < limit, f"{name} holds {low} to {high}; expected 0 to {limit - 1}")
    rises = np.diff(wide) > 0
    starts = offsets[1:-1]  # a row may start lower than the row before ended
    starts = starts[(starts > 0) & (starts < columns.size)]
    rises[starts - 1] = True
    _require(bool(rises.all()), f"{name} does not rise within every row")


def _check_finite(name: str, a: NDArray[np.float32], scale: bool) -> None:
    _require(bool(np.isfinite(a).all()), f"{name} holds values that are not finite")
    if scale:
        _require(bool((a >= 0.0).all()), f"{name} holds negative scales")


def check_layer(name: str, layer: SparseLayer) -> None:
    rows, cols, bias = layer.rows, layer.cols, layer.bias_mean
    for what, n in (("rows", rows), ("cols", cols)):
        _require(
            isinstance(n, int) and 0 <= n <= LIMIT, f"{name}.{what} is {n!r}; expected 0 to {LIMIT}"
        )
    _check_array(f"{name}.bias_mean", bias, (np.float32,), (rows,))
    _check_array(f"{name}.row_index", layer.row_index, (np.int32,), (rows,))
    _check_array(f"{name}.row_offsets", layer.row_offsets, (np.int64,), (rows + 1,))
    _require(
        isinstance(layer.mean, np.ndarray) and layer.mean.ndim == 1 and layer.mean.size <= LIMIT,
        f"{name}.mean is not a vector of at most {LIMIT} weights",
    )
    nnz = layer.nnz
    _check_array(f"{name}.mean", layer.mean, (np.float32,), (nnz,))
    _check_array(f"{name}.columns", layer.columns, (np.uint16, np.int32), (nnz,))
    check_offsets(f"{name}.row_offsets", layer.row_offsets, nnz)
    check_ascending(f"{name}.columns", layer.columns, layer.row_offsets, cols)
    _require(bool((layer.row_index >= 0).all()), f"{name}.row_index holds negative indices")
    _check_finite(f"{name}.mean", layer.mean, scale=False)
    _check_finite(f"{name}.bias_mean", bias, scale=False)
    _require(
        (layer.scale is None) == (layer.bias_scale is None),
        f"{name}: scale and bias_scale go together; one of them is None",
    )
    if layer.scale is not None:
        _check_array(f"{name}.scale", layer.scale, (np.float32,), (nnz,))
        _check_array(f"{name}.bias_scale", layer.bias_scale, (np.float32,), (rows,))
        _check_finite(f"{name}.scale", layer.scale, scale=True)
        if layer.bias_scale is not None:
            _check_finite(f"{name}.bias_scale", layer.bias_scale, scale=True)
    (bn, bk), blocks = layer.block, layer.blocks
    _require(
        isinstance(bn, int) and isinstance(bk, int) and 1 <= bn <= LIMIT and 1 <= bk <= LIMIT,
        f"{name}.block is {layer.block!r}; expected two positive ints",
    )
    _require(
        (blocks is None) == (layer.block == (1, 1)),
        f"{name} has block={layer.block} and {'no ' if blocks is None else ''}block arrays",
    )
    for known in FORMATS.values():
        known.check(name, layer)


def check_blocks(name: str, layer: SparseLayer) -> None:
    """Whether the arrays of blocks hold the layer's weights."""
    (bn, bk), blocks = layer.block, layer.blocks
    if blocks is None:
        return
    grid_rows, grid_cols = -(-layer.rows // bn), -(-layer.cols // bk)
    _require(isinstance(blocks.values, np.ndarray), f"{name}.blocks.values is not a numpy array")
    count = blocks.values.shape[0] if blocks.values.ndim == 3 else -1
    _check_array(f"{name}.blocks.values", blocks.values, (np.float32,), (count, bn, bk))
    offsets = blocks.block_row_offsets
    _check_array(f"{name}.blocks.block_row_offsets", offsets, (np.int32,), (grid_rows + 1,))
    check_offsets(f"{name}.blocks.block_row_offsets", offsets, count)
    columns = f"{name}.blocks.block_columns"
    _check_array(columns, blocks.block_columns, (np.uint16, np.int32), (count,))
    check_ascending(columns, blocks.block_columns, offsets, grid_cols)
    # Rows hold exactly the weights of their blocks: sampled weights go from one order to the other.
    per_row = np.zeros(grid_rows, np.int64)
    widths = np.minimum(bk, layer.cols - blocks.block_columns.astype(np.int64) * bk)
    np.add.at(per_row, np.repeat(np.arange(grid_rows), np.diff(offsets)), widths)
    in_blocks = per_row[np.arange(layer.rows) // bn]
    _require(
        bool((np.diff(layer.row_offsets) == in_blocks).all()),
        f"{name}: rows and blocks do not hold the same weights",
    )


@dataclass(frozen=True, eq=False)
class CheckedNetwork:
    """A network of which ``check_network`` found nothing wrong; ``checked`` makes one."""

    network: SparseNetwork


def checked(network: SparseNetwork | CheckedNetwork) -> CheckedNetwork:
    """The network, checked now unless it was before. ValueError with what is wrong."""
    if isinstance(network, CheckedNetwork):
        return network
    if not isinstance(network, SparseNetwork):
        raise TypeError(
            f"network is a {type(network).__name__}; expected a SparseModel or SparseNetwork (from "
            "fastlbbnn.select or SparseModel.load)"
        )
    check_network(network)
    return CheckedNetwork(network)


def check_network(network: SparseNetwork) -> None:
    """Raises ValueError, with what is wrong, unless all indices are safe to use."""
    layers, constants = network.layers, network.constants
    _require(len(layers) > 0, "a network without layers; expected at least one")
    in_features = network.in_features
    _require(
        isinstance(in_features, int) and 1 <= in_features <= LIMIT,
        f"in_features is {in_features!r}; expected 1 to {LIMIT}",
    )
    _check_array("inputs", network.inputs, (np.int32,), (layers[0].cols,))
    ends = np.array([0, network.inputs.size])
    check_ascending("inputs", network.inputs, ends, in_features)
    for i, layer in enumerate(layers):
        check_layer(f"layers[{i}]", layer)
        if i:
            before = layers[i - 1].rows
            _require(layer.cols == before, f"layers[{i}] takes {layer.cols} of {before} units")
    _require(layers[-1].rows > 0, "a network without outputs")
    _require(
        len({layer.scale is None for layer in layers}) == 1, "some layers have scales and some not"
    )
    _require(
        len(constants) in (0, len(layers)),
        f"{len(constants)} layers of constants; expected none or {len(layers)}",
    )
    before = 0
    for i, (layer, constant) in enumerate(zip(layers, constants)):
        name = f"constants[{i}]"
        check_layer(name, constant)
        _require(constant.scale is not None, f"{name} has no scales")
        _require(constant.cols == before, f"{name} takes {constant.cols} of {before} constants")
        _require(constant.rows >= layer.rows, f"{name} has fewer rows than layers[{i}]")
        before = constant.rows - layer.rows
