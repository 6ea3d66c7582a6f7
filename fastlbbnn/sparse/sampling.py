"""One draw of a selected network's weights and biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .network import SparseNetwork

#: Weights (in the order of the layer's arrays) and biases, layer by layer.
SampledLayers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]

#: (layer, whether its constants are meant, seed, sample) -> weights and biases.
DrawLayer = Callable[[int, bool, int, int], tuple[NDArray[np.float32], NDArray[np.float32]]]


def check_draw(network: SparseNetwork, seeds: Sequence[int]) -> None:
    """Raise where the network's weights cannot be drawn with these seeds."""
    if not network.has_posterior:
        raise ValueError(
            "the network holds means alone, so its weights cannot be sampled; select (and save) it with "
            "posterior=True"
        )
    if len(seeds) != len(network.layers):
        raise ValueError(f"{len(seeds)} seeds for {len(network.layers)} layers; expected one per layer")


def sample_layers(
    network: SparseNetwork, draw: DrawLayer, seeds: Sequence[int], sample: int
) -> SampledLayers:
    """Draw every layer. Constant units are drawn, too, and folded into the biases of this draw."""
    check_draw(network, seeds)
    sampled: SampledLayers = []
    constant = np.zeros(0, np.float32)
    for i, (layer, seed) in enumerate(zip(network.layers, seeds)):
        values, bias = draw(i, False, seed, sample)
        if network.constants:
            fixed = network.constants[i]
            weights, raw = draw(i, True, seed, sample)
            # For units that take no input: raw = W constant + b, for live rows and then constant ones.
            terms = weights * constant[fixed.columns]
            sums = np.bincount(fixed.row_of, weights=terms, minlength=fixed.rows)
            raw = (raw + sums).astype(np.float32)
            bias, constant = np.ascontiguousarray(raw[: layer.rows]), raw[layer.rows :]
            if fixed.relu:
                constant = np.maximum(constant, np.float32(0.0))
        sampled.append((values, bias))
    return sampled
