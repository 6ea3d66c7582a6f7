"""What the exports to other formats share."""

from __future__ import annotations

from ..check import check_network
from ..network import SparseLayer, SparseNetwork


def checked_network(network: object) -> SparseNetwork:
    """The network of a model, or the network itself, checked."""
    network = getattr(network, "network", network)
    if not isinstance(network, SparseNetwork):
        raise TypeError(
            f"network is a {type(network).__name__}; expected a SparseModel or SparseNetwork (from "
            "fastlbbnn.select or fastlbbnn.sparse.read_artifact)"
        )
    check_network(network)
    return network


def layers_with_effect(network: SparseNetwork) -> list[tuple[int, SparseLayer]]:
    """Layers and their indices, from the last one without weights on: none before has an effect.

    Only the first of them can be without weights; its units are its biases. The first reads the
    network's input if its index is 0 and it has weights.
    """
    first = max((i for i, layer in enumerate(network.layers) if layer.nnz == 0), default=0)
    return list(enumerate(network.layers))[first:]
