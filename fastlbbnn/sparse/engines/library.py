"""The C++ library's view of a network: packed weights, passes over a batch, sampled weights."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..check import CheckedNetwork
from ..formats import FORMATS
from ..network import SparseLayer
from .native import FlLayer, FlPass, library


def computes(name: str) -> bool:
    """Whether the library computes layers in the format."""
    return FORMATS[name].code is not None


def _codes(formats: Sequence[str]) -> NDArray[np.int32]:
    """As the library counts formats; 0 for layers that it is not asked for."""
    return np.array([FORMATS[name].code or 0 for name in formats], np.int32)


def _address(a: NDArray[Any] | None) -> int | None:
    return None if a is None else a.ctypes.data


def describe(layer: SparseLayer, col_index: NDArray[np.int32]) -> FlLayer:
    """The layer as a C struct; the arrays must outlive it."""
    # (Blocks of any size where there are none: the library need not hear of them.)
    blocks = layer.blocks if FORMATS["bsr"].fits(layer) else None
    return FlLayer(
        rows=layer.rows, cols=layer.cols, row_offsets=_address(layer.row_offsets),
        columns=_address(layer.columns), mean=_address(layer.mean), scale=_address(layer.scale),
        bias_mean=_address(layer.bias_mean), bias_scale=_address(layer.bias_scale),
        row_index=_address(layer.row_index), col_index=_address(col_index),
        block_rows=0 if blocks is None else layer.block[0],
        block_cols=0 if blocks is None else layer.block[1],
        block_row_offsets=None if blocks is None else _address(blocks.block_row_offsets),
        block_columns=None if blocks is None else _address(blocks.block_columns),
        block_values=None if blocks is None else _address(blocks.values),
        column_bytes=layer.columns.itemsize,
        block_column_bytes=0 if blocks is None else blocks.block_columns.itemsize,
        relu=int(layer.relu),
    )


def _checked(code: int) -> None:
    if code:
        raise MemoryError("fastlbbnn.sparse: out of memory")


class Library:
    """A network inside the C++ library. Formats are given by name, one per layer."""

    def __init__(self, checked: CheckedNetwork) -> None:
        self.network = network = checked.network
        self._library = lib = library()
        columns = [network.inputs, *(layer.row_index for layer in network.layers)]
        self._layers = (FlLayer * len(network.layers))(*map(describe, network.layers, columns))
        self._handle = lib.fl_sparse_create(
            self._layers, len(network.layers), _address(network.inputs)
        )
        if not self._handle:
            raise MemoryError("fastlbbnn.sparse: out of memory")
        weakref.finalize(self, lib.fl_sparse_destroy, self._handle)
        self._constants = self._describe_constants()

    def _describe_constants(self) -> list[tuple[FlLayer, NDArray[Any]]]:
        described, before = [], np.zeros(0, np.int32)
        for layer, constant in zip(self.network.layers, self.network.constants):
            described.append((describe(constant, before), before))
            before = np.ascontiguousarray(constant.row_index[layer.rows :])
        return described

    def runner(
        self,
        formats: Sequence[str],
        threads: int,
        first: int = 0,
        last: int | None = None,
        draws: Draws | None = None,
    ) -> Callable[[int, int, int], None]:
        """A function of the addresses of x and y and the batch, for layers ``[first, last)``.

        It keeps alive what it needs. x is ``[batch, inputs]`` float32 by rows, y ``[batch, outputs]``,
        and with draws ``[samples, batch, outputs]``.
        """
        network = self.network
        codes = _codes(formats)
        last = len(network.layers) if last is None else last
        setting = FlPass(
            network=self._handle, draws=None if draws is None else draws.handle,
            formats=codes.ctypes.data, stride=network.in_features if first == 0
            else network.layers[first].cols, first=first, last=last, threads=threads,
        )
        keep = (self, codes, setting, draws)
        run, where = self._library.fl_sparse_run, ctypes.addressof(setting)

        def call(x: int, batch: int, y: int, keep=keep) -> None:
            if run(where, x, batch, y):
                _checked(1)

        return call

    def draw(
        self, i: int, constant: bool, seed: int, sample: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Sampled weights and biases of layer i (or of its constants), in the order of its arrays."""
        layer = self.network.constants[i] if constant else self.network.layers[i]
        values = np.empty(layer.nnz, np.float32)
        return values, self._draw(i, constant, seed, sample, values)

    def draw_bias(self, i: int, seed: int, sample: int) -> NDArray[np.float32]:
        """The biases of ``draw``."""
        return self._draw(i, False, seed, sample, None)

    def _draw(
        self, i: int, constant: bool, seed: int, sample: int, values: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        described = self._constants[i][0] if constant else self._layers[i]
        bias = np.empty(described.rows, np.float32)
        _checked(
            self._library.fl_sparse_draw(
                described, seed & 0xFFFFFFFFFFFFFFFF, sample, _address(values), bias.ctypes.data
            )
        )
        return bias


def fit_side_by_side(samples: int, batch: int) -> bool:
    """Whether these draws and observations are fewer vectors of samples than of observations."""
    return bool(library().fl_sparse_side_by_side(samples, batch))


class Draws:
    """Sampled weights of a network, drawn in the order in which one choice of formats has them; or,
    ``side_by_side``, for batches so small that the samples of a weight are better multiplied together
    (``fit_side_by_side``).

    ``biases``: of all layers [samples, rows], where they are not drawn for themselves.
    """

    def __init__(
        self, engine: Library, formats: Sequence[str], samples: int, seeds: Sequence[int], *, threads: int,
        side_by_side: bool = False, biases: Sequence[NDArray[np.float32]] | None = None,
    ) -> None:
        self.samples = samples
        lib = engine._library
        codes = _codes(formats)
        self.handle = lib.fl_sparse_draws_create(
            engine._handle, self.samples, codes.ctypes.data, int(side_by_side)
        )
        if not self.handle:
            raise MemoryError("fastlbbnn.sparse: out of memory")
        weakref.finalize(self, lib.fl_sparse_draws_destroy, self.handle)
        for i, seed in enumerate(seeds):
            given = None if biases is None else biases[i].ctypes.data
            _checked(
                lib.fl_sparse_draws_fill(
                    engine._handle, self.handle, i, engine._layers[i], seed & 0xFFFFFFFFFFFFFFFF, threads, given
                )
            )
