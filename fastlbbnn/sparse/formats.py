"""The formats of a layer's weights: how they are kept in a file, and how they are multiplied.

A layer always has its weights by rows (``SparseLayer``); a format makes other arrays of them to multiply
with, and knows how a file keeps them. One of your own is registered from anywhere, and is from then on
timed against the others, chosen where it is fastest, and written and read:

    @fastlbbnn.sparse.FORMATS.register("ell")
    class Ell(fastlbbnn.sparse.Format):
        def arrays_of(self, layer, values=None): ...
        def multiply(self, layer, arrays, x): ...

``fastlbbnn.contracts.sparse_format.check_format`` says whether it keeps to the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._util.registry import Registry
from .network import (
    BlockArrays,
    SparseLayer,
    index_dtype,
    places_in_blocks,
    row_offsets_of,
    rows_of_blocks,
)
from .positions import decode_positions, encode_positions

if TYPE_CHECKING:
    from .artifact import StoredLayer

#: Products that a multiplication holds at once, at most.
_AT_ONCE = 1 << 22

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Weights:
    """What ``from_file`` finds: where the weights are, by rows, and what they are."""

    row_offsets: NDArray[np.int64]
    columns: NDArray[Any]
    mean: NDArray[np.float32]
    scale: NDArray[np.float32] | None
    blocks: BlockArrays | None = None


class Format:
    """How weights are laid out. The base class multiplies by way of the dense matrix."""

    name: str = ""
    #: What the C++ library knows the format by (csrc/sparse/api.h: FlPass.formats); None: numpy computes it.
    code: int | None = None
    #: Whether a file in this format keeps the layer's blocks; else it keeps single weights.
    keeps_blocks = False

    def fits(self, layer: SparseLayer) -> bool:
        """Whether the layer can be laid out like this."""
        return True

    def arrays_of(self, layer: SparseLayer, values: NDArray[np.float32] | None = None) -> Arrays:
        """The arrays to multiply with. ``values``: of the weights by rows; by default the means."""
        return {"dense": layer.dense(values)}

    def multiply(self, layer: SparseLayer, arrays: Arrays, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """``x W'``, [batch, cols] -> [batch, rows], without bias or ReLU."""
        return x @ self.to_dense(layer, arrays).T

    def to_dense(self, layer: SparseLayer, arrays: Arrays) -> NDArray[np.float32]:
        """``W``, [rows, cols]."""
        return arrays["dense"]

    def check(self, name: str, layer: SparseLayer) -> None:
        """ValueError where arrays that the layer has for this format alone do not fit its weights."""

    # --- files -------------------------------------------------------------------------------------

    def to_file(self, layer: SparseLayer) -> dict[str, NDArray[Any]]:
        """Tensors to write: "mean", with a posterior "scale" (float32, which the file may round), and
        where the weights are, in uint8, uint16 or int32."""
        raise ValueError(f"layers cannot be written as {self.name!r}")

    def from_file(self, stored: StoredLayer) -> Weights:
        """What ``to_file`` wrote. Nothing may be allocated that the file's tensors do not cover."""
        raise ValueError(f"layers cannot be read as {self.name!r}")


class FormatRegistry(Registry[Format]):
    """Formats by name. Takes an object or, as a decorator, a class, of which it keeps one object."""

    def register(self, name: str, thing: Any = None, *, replace: bool = False) -> Any:
        def remember(given: Any) -> Any:
            made = given() if isinstance(given, type) else given
            if not isinstance(made, Format):
                raise TypeError(f"{given!r} is not a fastlbbnn.sparse.Format; derive it from that class")
            made.name = name
            Registry.register(self, name, made, replace=replace)
            return given

        return remember if thing is None else remember(thing)


FORMATS = FormatRegistry("sparse format")


@FORMATS.register("dense")
class Dense(Format):
    """The whole matrix: what torch and numpy multiply fastest where most weights are there."""


@FORMATS.register("csr")
class ByRows(Format):
    """Scattered weights, row by row."""

    code = 0

    def arrays_of(self, layer: SparseLayer, values: NDArray[np.float32] | None = None) -> Arrays:
        filled = np.flatnonzero(np.diff(layer.row_offsets))
        return {
            "columns": layer.columns.astype(np.intp), "values": layer.mean if values is None else values,
            "filled": filled, "starts": layer.row_offsets[filled],
        }

    def multiply(self, layer: SparseLayer, arrays: Arrays, x: NDArray[np.float32]) -> NDArray[np.float32]:
        y = np.zeros((x.shape[0], layer.rows), np.float32)
        filled, starts = arrays["filled"], arrays["starts"]
        if filled.size == 0:
            return y
        step = max(1, _AT_ONCE // layer.nnz)
        for first in range(0, x.shape[0], step):
            products = x[first : first + step][:, arrays["columns"]]
            products *= arrays["values"]
            y[first : first + step, filled] = np.add.reduceat(products, starts, axis=1)
        return y

    def to_dense(self, layer: SparseLayer, arrays: Arrays) -> NDArray[np.float32]:
        return layer.dense(arrays["values"])

    def to_file(self, layer: SparseLayer) -> dict[str, NDArray[Any]]:
        positions = layer.row_of.astype(np.int64) * layer.cols + layer.columns
        return {"gaps": encode_positions(positions), **_values(layer.mean, layer.scale)}

    def from_file(self, stored: StoredLayer) -> Weights:
        shape = stored.shape("mean")
        if len(shape) != 1:
            raise ValueError(f"{stored.name}.mean is {list(shape)}; expected a vector")
        positions = decode_positions(
            f"{stored.name}.gaps", stored.integers("gaps"), shape[0], stored.rows * stored.cols
        )
        # (No positions, no columns: 1 stands in for a width of 0.)
        at_row, at_col = np.divmod(positions, max(1, stored.cols))
        offsets = row_offsets_of(at_row, stored.rows)
        return Weights(offsets, at_col.astype(index_dtype(stored.cols)), *stored.mean_and_scale(shape))


@FORMATS.register("bsr")
class ByBlocks(Format):
    """Dense blocks, by block rows; the blocks are those whose weights share an indicator."""

    code = 1
    keeps_blocks = True

    def fits(self, layer: SparseLayer) -> bool:
        blocks = layer.blocks
        # (A file may claim any size for the blocks of a layer that has none.)
        return blocks is not None and (blocks.values.size > 0 or layer.block[0] * layer.block[1] <= 1 << 16)

    def arrays_of(self, layer: SparseLayer, values: NDArray[np.float32] | None = None) -> Arrays:
        blocks = _blocks_of(layer)
        tiles = blocks.values
        if values is not None:
            tiles = np.zeros_like(blocks.values)
            tiles.ravel()[places_in_blocks(layer)] = values
        filled = np.flatnonzero(np.diff(blocks.block_row_offsets))
        return {
            "tiles": tiles, "columns": blocks.block_columns.astype(np.intp), "filled": filled,
            "starts": blocks.block_row_offsets[filled],
        }

    def multiply(self, layer: SparseLayer, arrays: Arrays, x: NDArray[np.float32]) -> NDArray[np.float32]:
        (bn, bk), batch, tiles = layer.block, x.shape[0], arrays["tiles"]
        filled, columns = arrays["filled"], arrays["columns"]
        if filled.size == 0:
            return np.zeros((batch, layer.rows), np.float32)
        grid = -(-layer.rows // bn), -(-layer.cols // bk)
        y = np.zeros((grid[0] * bn, batch), np.float32)
        step = max(1, _AT_ONCE // (len(tiles) * max(bn, bk)))
        for first in range(0, batch, step):
            part = x[first : first + step].T
            padded = np.zeros((grid[1] * bk, part.shape[1]), np.float32)
            padded[: layer.cols] = part
            products = tiles @ padded.reshape(grid[1], bk, -1)[columns]  # [blocks, bn, batch]
            sums = np.add.reduceat(products, arrays["starts"], axis=0)
            y.reshape(grid[0], bn, batch)[filled, :, first : first + step] = sums
        return np.ascontiguousarray(y[: layer.rows].T)

    def to_dense(self, layer: SparseLayer, arrays: Arrays) -> NDArray[np.float32]:
        return layer.dense(arrays["tiles"].ravel()[places_in_blocks(layer)])

    def check(self, name: str, layer: SparseLayer) -> None:
        from .check import check_blocks

        check_blocks(name, layer)

    def to_file(self, layer: SparseLayer) -> dict[str, NDArray[Any]]:
        blocks = _blocks_of(layer)
        grid_rows = blocks.block_row_offsets.size - 1
        rows = np.repeat(np.arange(grid_rows, dtype=np.int64), np.diff(blocks.block_row_offsets))
        positions = rows * -(-layer.cols // layer.block[1]) + blocks.block_columns
        return {"gaps": encode_positions(positions), **_values(blocks.values, blocks.scales)}

    def from_file(self, stored: StoredLayer) -> Weights:
        (bn, bk), shape = stored.block, stored.shape("mean")
        if stored.block == (1, 1) or shape[1:] != stored.block:
            raise ValueError(
                f"{stored.name}.mean is {list(shape)}; expected blocks of {list(stored.block)}, larger than 1"
            )
        grid = -(-stored.rows // bn), -(-stored.cols // bk)
        positions = decode_positions(
            f"{stored.name}.gaps", stored.integers("gaps"), shape[0], grid[0] * grid[1]
        )
        at_row, at_col = np.divmod(positions, max(1, grid[1]))
        blocks = BlockArrays(
            row_offsets_of(at_row, grid[0]).astype(np.int32), at_col.astype(index_dtype(grid[1])),
            *stored.mean_and_scale(shape),
        )
        return Weights(*rows_of_blocks(blocks, stored.rows, stored.cols, stored.block), blocks)


def _values(
    mean: NDArray[np.float32], scale: NDArray[np.float32] | None
) -> dict[str, NDArray[np.float32]]:
    return {"mean": mean} if scale is None else {"mean": mean, "scale": scale}


def _blocks_of(layer: SparseLayer) -> BlockArrays:
    if layer.blocks is None:
        raise ValueError(f"a layer of blocks {layer.block} has no block arrays; expected indicators by blocks")
    return layer.blocks


def formats_of(layer: SparseLayer) -> list[str]:
    """Names of the formats that the layer can have, in the order of registration."""
    return [name for name, known in FORMATS.items() if known.fits(layer)]
