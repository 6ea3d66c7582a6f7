"""A network computed by numpy: without the C++ library, and in formats that the library does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..check import CheckedNetwork
from ..formats import FORMATS
from ..network import SparseLayer
from . import noise
from .arrays import Arrays, Step


def layer_step(
    arrays: Arrays, layer: SparseLayer, name: str, values: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None, inputs: NDArray[np.int32] | None = None,
) -> Step:
    """A layer in a format: relu(x W' + b). ``values``, ``bias``: by default the means."""
    known = FORMATS[name]
    made, added = known.arrays_of(layer, values), layer.bias_mean if bias is None else bias

    def step(x: Any) -> Any:
        given = arrays.to_numpy(x)
        y = known.multiply(layer, made, given if inputs is None else given[:, inputs])
        # By rows, however a format multiplies: the next layer may be the library's.
        y = np.add(y, added, dtype=np.float32, order="C")
        return arrays.from_numpy(np.maximum(y, np.float32(0.0), out=y) if layer.relu else y)

    return step


class NumpyKernels:
    """Draws of a network's weights, as the library makes them."""

    def __init__(self, checked: CheckedNetwork) -> None:
        self.network = checked.network

    def draw(
        self, i: int, constant: bool, seed: int, sample: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Sampled weights and biases of layer i (or of its constants), in the order of its arrays."""
        network = self.network
        layer = network.constants[i] if constant else network.layers[i]
        if not constant:
            columns = network.inputs if i == 0 else network.layers[i - 1].row_index
        elif i == 0:
            columns = np.zeros(0, np.int32)
        else:
            columns = network.constants[i - 1].row_index[network.layers[i - 1].rows :]
        rows = layer.row_index
        eps = noise.normals_at(seed, noise.WEIGHT, sample, rows[layer.row_of], columns[layer.columns])
        values = layer.mean + _present(layer.scale) * eps
        eps = noise.normals_at(seed, noise.BIAS, sample, np.zeros(layer.rows, np.int64), rows)
        return values, layer.bias_mean + _present(layer.bias_scale) * eps


def _present(scale: NDArray[np.float32] | None) -> NDArray[np.float32]:
    assert scale is not None, "sampling.check_draw comes first"
    return scale
