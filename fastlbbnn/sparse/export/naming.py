"""What the exports to other formats share."""

from __future__ import annotations

from ..check import checked
from ..description import Description
from ..model import SparseModel
from ..network import SparseLayer, SparseNetwork


def network_and_description(model: object) -> tuple[SparseNetwork, Description]:
    """Those of a model; or a network, checked, about which nothing else is known."""
    if isinstance(model, SparseModel):
        return model.network, model.description
    return checked(model).network, Description()  # type: ignore[arg-type]


def layers_with_effect(network: SparseNetwork) -> list[tuple[int, SparseLayer]]:
    """Layers and their indices, from the last one without weights on: none before has an effect.

    Only the first of them can be without weights; its units are its biases. The first reads the
    network's input if its index is 0 and it has weights.
    """
    first = max((i for i, layer in enumerate(network.layers) if layer.nnz == 0), default=0)
    return list(enumerate(network.layers))[first:]
