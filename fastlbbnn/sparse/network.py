"""A selected network as arrays: numpy alone, no torch.

A layer computes ``y = relu(W x + b)`` (without the relu where ``relu`` is False). ``W`` is kept by
rows: row ``i`` holds ``mean[row_offsets[i]:row_offsets[i+1]]`` at ``columns[...]``, ascending. A
layer whose indicators are shared by blocks keeps the same weights as whole blocks, too.

Rows and columns count the units that are left. ``row_index`` says which unit of the trained network
a row is: the noise of a weight is a function of its place there, so the sampled weights of a selected
network are those of the network that it was selected from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


def index_dtype(count: int) -> type[np.integer]:
    """The smallest dtype that the library uses for indices below ``count``."""
    return np.uint16 if count <= 1 << 16 else np.int32


@dataclass(eq=False)
class BlockArrays:
    """The weights of a layer as dense blocks ``(bn, bk)``, by block rows (BSR).

    Block ``k`` of block row ``i``, ``block_row_offsets[i] <= k < block_row_offsets[i+1]``, covers rows
    from ``i * bn`` and columns from ``block_columns[k] * bk``. Blocks that stick out at the last row or
    column hold zeros there.
    """

    block_row_offsets: NDArray[np.int32]  # [ceil(rows / bn) + 1]
    block_columns: NDArray  # [nblocks], uint16 or int32
    values: NDArray[np.float32]  # [nblocks, bn, bk], the means
    scales: NDArray[np.float32] | None  # [nblocks, bn, bk]; 0 where a block sticks out


@dataclass(eq=False)
class SparseLayer:
    """One layer of a selected network."""

    rows: int  # outputs
    cols: int  # inputs
    row_offsets: NDArray[np.int64]  # [rows + 1]
    columns: NDArray  # [nnz], uint16 where they fit, else int32; ascending in a row
    mean: NDArray[np.float32]  # [nnz], kappa
    scale: NDArray[np.float32] | None  # [nnz], tau; None: means only
    bias_mean: NDArray[np.float32]  # [rows], with the constants of removed units folded in
    bias_scale: NDArray[np.float32] | None  # [rows]; 0 for a layer without bias
    row_index: NDArray[np.int32]  # [rows], the unit's index in the trained network
    relu: bool
    block: tuple[int, int] = (1, 1)
    blocks: BlockArrays | None = None  # for block != (1, 1)

    @property
    def nnz(self) -> int:
        return int(self.mean.size)

    @property
    def density(self) -> float:
        """Share of ``rows * cols`` that is kept; 1 for a layer without weights."""
        return self.nnz / (self.rows * self.cols) if self.rows * self.cols else 1.0

    @cached_property
    def row_of(self) -> NDArray[np.int32]:
        """The row of every kept weight, ``[nnz]``."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), np.diff(self.row_offsets))

    @property
    def stored_as(self) -> str:
        """The format that the layer's arrays are in, which is the one that files keep it in."""
        return "csr" if self.blocks is None else "bsr"

    def dense(self, values: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """``[rows, cols]`` with ``values`` (by default the means) in place and zeros elsewhere."""
        out = np.zeros((self.rows, self.cols), np.float32)
        out[self.row_of, self.columns] = self.mean if values is None else values
        return out


@dataclass(eq=False)
class SparseNetwork:
    """All layers, and what the selected network has to do with the trained one."""

    layers: list[SparseLayer]
    inputs: NDArray[np.int32]  # [layers[0].cols], the input features that are used, ascending
    in_features: int  # of the trained network
    threshold: float = 0.5
    #: For sampled weights: the units that have no path from an input. ``constants[i]`` is a layer from
    #: the constant units before (its columns) to the rows of ``layers[i]`` followed by the constant
    #: units of this layer; its biases are those of the trained network. The means of the constants
    #: are already in ``layers[i].bias_mean``. Empty where there are none, or no posterior.
    constants: list[SparseLayer] = field(default_factory=list)

    @property
    def out_features(self) -> int:
        return self.layers[-1].rows

    @property
    def has_posterior(self) -> bool:
        return all(layer.scale is not None for layer in self.layers)

    @property
    def is_constant(self) -> bool:
        """Whether no path from an input to an output is left, so that the output ignores the input."""
        return self.inputs.size == 0

    @property
    def nnz(self) -> int:
        return sum(layer.nnz for layer in self.layers)


def row_offsets_of(rows_of_weights: NDArray, rows: int) -> NDArray[np.int64]:
    """Offsets ``[rows + 1]`` for weights whose rows are given in ascending order."""
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(rows_of_weights, minlength=rows), out=offsets[1:])
    return offsets


def blocks_from_grid(
    dense_mean: NDArray[np.float32],
    dense_scale: NDArray[np.float32] | None,
    kept: NDArray[np.bool_],
    block: tuple[int, int],
) -> BlockArrays:
    """Cut ``[rows, cols]`` into blocks and keep those where ``kept`` (on the grid of blocks) is set."""
    (bn, bk), (grid_rows, grid_cols) = block, kept.shape
    at_row, at_col = np.nonzero(kept)

    def cut(dense: NDArray[np.float32]) -> NDArray[np.float32]:
        padded = np.zeros((grid_rows * bn, grid_cols * bk), np.float32)
        padded[: dense.shape[0], : dense.shape[1]] = dense
        tiles = padded.reshape(grid_rows, bn, grid_cols, bk)
        return np.ascontiguousarray(tiles[at_row, :, at_col, :])

    return BlockArrays(
        block_row_offsets=row_offsets_of(at_row, grid_rows).astype(np.int32),
        block_columns=at_col.astype(index_dtype(grid_cols)),
        values=cut(dense_mean),
        scales=None if dense_scale is None else cut(dense_scale),
    )


def _weights_in_blocks(
    blocks: BlockArrays, rows: int, cols: int, block: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row, column and place in ``blocks.values`` (flattened) of every weight, by rows."""
    bn, bk = block
    if blocks.values.size == 0:  # of which a hostile file may claim any size
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    block_rows = np.repeat(
        np.arange(blocks.block_row_offsets.size - 1), np.diff(blocks.block_row_offsets)
    )
    shape = blocks.values.shape
    row = (block_rows * bn)[:, None, None] + np.arange(bn)[:, None]
    col = (blocks.block_columns.astype(np.int64) * bk)[:, None, None] + np.arange(bk)
    row, col = np.broadcast_to(row, shape), np.broadcast_to(col, shape)
    place = np.flatnonzero((row < rows) & (col < cols))
    row, col = row.ravel()[place], col.ravel()[place]
    order = np.lexsort((col, row))
    return row[order], col[order], place[order]


def places_in_blocks(layer: SparseLayer) -> NDArray[np.int32]:
    """Where each weight of the layer is in its ``blocks.values``, flattened."""
    if layer.blocks is None:
        raise ValueError("the layer has no blocks; expected one whose indicators are shared by blocks")
    place = _weights_in_blocks(layer.blocks, layer.rows, layer.cols, layer.block)[2]
    return place.astype(np.int32)


def rows_of_blocks(
    blocks: BlockArrays, rows: int, cols: int, block: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray, NDArray[np.float32], NDArray[np.float32] | None]:
    """Row offsets, columns, means and scales of the weights that the blocks hold."""
    row, col, place = _weights_in_blocks(blocks, rows, cols, block)
    return (
        row_offsets_of(row, rows),
        col.astype(index_dtype(cols)),
        blocks.values.ravel()[place],
        None if blocks.scales is None else blocks.scales.ravel()[place],
    )
