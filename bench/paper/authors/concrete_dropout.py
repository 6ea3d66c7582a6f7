"""BNN-GP-CMF: Concrete dropout on pre-activations, the logits included."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .prediction import SAMPLES, Mode
from .stages import Stage

TEMPERATURE = 0.1
GUARD = 1e-7
#: The same for 60,000 and for 3,500 training rows.
WEIGHT_PENALTY, DROPOUT_PENALTY = 1e-6, 1e-5


class ConcreteDropoutLayer(nn.Module):
    """dropout(x W^T + b), with one learned rate p."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        limit = math.log(0.9 / 0.1)
        self.p_logit = nn.Parameter(torch.empty(()).uniform_(-limit, limit))

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, in] -> [B, out]. There is no pass without noise."""
        x = self.linear(x)
        p, u = self.p_logit.sigmoid(), torch.rand_like(x)
        noise = (u + GUARD).log() - (1.0 - u + GUARD).log()
        dropped = (((p + GUARD).log() - (1.0 - p + GUARD).log() + noise) / TEMPERATURE).sigmoid()
        return x * (1.0 - dropped) / (1.0 - p)

    def penalty(self) -> Tensor:
        p = self.p_logit.sigmoid()
        squares = self.linear.weight.square().sum() + self.linear.bias.square().sum()
        negative_entropy = p * p.log() + (1.0 - p) * (1.0 - p).log()
        outputs = len(self.linear.bias)
        return WEIGHT_PENALTY * squares / (1.0 - p) + DROPOUT_PENALTY * outputs * negative_entropy


class AuthorsConcreteDropout(nn.Module):
    def __init__(self, sizes: tuple[int, ...], post_training_trains: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ConcreteDropoutLayer(i, o) for i, o in zip(sizes, sizes[1:]))
        self.post_training_trains = post_training_trains

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, in] -> log-probabilities [B, classes]: of the ReLU of the logits."""
        for layer in self.layers:
            x = layer(x).relu()
        return F.log_softmax(x, dim=1)

    def loss(self, x: Tensor, y: Tensor, batches: int) -> Tensor:
        return F.nll_loss(self(x), y) + sum(layer.penalty() for layer in self.layers)

    def stages(self, epochs: int, post_epochs: int) -> Iterator[Stage]:
        yield Stage("training", epochs, torch.optim.Adam(self.parameters(), lr=1e-4, fused=True), "trained")

        for layer in self.layers:
            layer.p_logit.requires_grad_(False)
        if self.post_training_trains:
            weights = [p for p in self.parameters() if p.requires_grad]
            optimizer = torch.optim.Adam(weights, lr=1e-4, fused=True)
            yield Stage("post-training", post_epochs, optimizer, "post-trained")
        else:
            # The image scripts hand the optimizer the three frozen rates alone: nothing is trained.
            yield Stage("post-training", 0, torch.optim.Adam([layer.p_logit for layer in self.layers]),
                        "post-trained")

    def predictor(self) -> AuthorsConcreteDropout:
        return self

    @torch.no_grad()
    def batch(self, x: Tensor, samples: int) -> dict[Mode, Tensor]:
        """The "posterior mean" is one more random pass."""
        drawn = torch.stack([self(x) for _ in range(samples)])
        return {("SIM", "SIM"): drawn, ("ALL", "MEA"): self(x)[None]}

    def densities(self) -> dict[tuple[str, int], float]:
        """The share of weights whose output one draw keeps, sum n (1 - p) / sum n."""
        weights = [layer.linear.weight.numel() for layer in self.layers]
        kept = [n * (1.0 - float(layer.p_logit.detach().sigmoid())) for n, layer in zip(weights, self.layers)]
        return {("SIM", 1): sum(kept) / sum(weights), ("SIM", SAMPLES): 1.0, ("ALL", 1): 1.0}
