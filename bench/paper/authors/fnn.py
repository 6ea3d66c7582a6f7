"""FNN: a plain network, and what is left of its accuracy after pruning by magnitude.

The authors published no code for it. By the paper: Adam 1e-4, 250 epochs, then a share of the weights, or of
the neurons, of smallest magnitude is removed and nothing is retrained. Ours to choose were: weights are
ranked over all layers together; a neuron's magnitude is the norm of its incoming weights, ranked within its
hidden layer. A share of neurons kept leaves a smaller share of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .prediction import Mode
from .stages import Stage

#: "Dens. level" of the supplement's tables, the share that is kept.
LEVELS = {
    "mnist": (0.5, 0.226, 0.194, 0.18, 0.163, 0.09, 0.079),
    "fmnist": (0.5, 0.302, 0.156, 0.129, 0.12, 0.108, 0.094),
    "phoneme": (0.6, 0.509, 0.457, 0.371, 0.307, 0.255, 0.225),
}


class AuthorsFNN(nn.Module):
    def __init__(self, sizes: tuple[int, ...], levels: tuple[float, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(sizes, sizes[1:]))
        self.levels = levels

    def loss(self, x: Tensor, y: Tensor, batches: int) -> Tensor:
        return F.cross_entropy(forward(x, [layer.weight for layer in self.layers], self.biases()), y)

    def biases(self) -> list[Tensor]:
        return [layer.bias for layer in self.layers]

    def stages(self, epochs: int, post_epochs: int) -> Iterator[Stage]:
        yield Stage("training", epochs, torch.optim.Adam(self.parameters(), lr=1e-4, fused=True), "trained")

    def predictor(self) -> FNNPredictor:
        return FNNPredictor(self)


class FNNPredictor:
    """gamma is ALL for the dense network, else what was pruned and the share kept: "weights 0.5"."""

    @torch.no_grad()
    def __init__(self, network: AuthorsFNN) -> None:
        weights = [layer.weight for layer in network.layers]
        self.biases = network.biases()
        self.networks = {"ALL": (1.0, weights)}
        for level in network.levels:
            self.networks[f"weights {level}"] = (level, keep_largest_weights(weights, level))
            self.networks[f"neurons {level}"] = (level, keep_largest_neurons(weights, level))

    @torch.no_grad()
    def batch(self, x: Tensor, samples: int) -> dict[Mode, Tensor]:
        return {
            (gamma, "MEA"): F.log_softmax(forward(x, weights, self.biases), dim=1)[None]
            for gamma, (_, weights) in self.networks.items()
        }

    def densities(self) -> dict[tuple[str, int], float]:
        """Share of the weights that are not zero."""
        return {
            (gamma, 1): sum(int((w != 0.0).sum()) for w in weights) / sum(w.numel() for w in weights)
            for gamma, (_, weights) in self.networks.items()
        }


def forward(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    for w, b in zip(weights[:-1], biases):
        x = F.linear(x, w, b).relu()
    return F.linear(x, weights[-1], biases[-1])


def keep_largest_weights(weights: list[Tensor], share: float) -> list[Tensor]:
    magnitudes = torch.cat([w.abs().flatten() for w in weights])
    dropped = round((1.0 - share) * magnitudes.numel())
    if dropped == 0:
        return list(weights)
    limit = magnitudes.kthvalue(dropped).values
    return [w * (w.abs() > limit) for w in weights]


def keep_largest_neurons(weights: list[Tensor], share: float) -> list[Tensor]:
    """Zeroes incoming and outgoing weights of hidden neurons, all but ``share`` of each hidden layer."""
    pruned = [w.clone() for w in weights]
    for incoming, outgoing, original in zip(pruned, pruned[1:], weights):
        norms = original.norm(dim=1)
        dropped = norms.argsort()[: len(norms) - round(share * len(norms))]
        incoming[dropped] = 0.0
        outgoing[:, dropped] = 0.0
    return pruned
