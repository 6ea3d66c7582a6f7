"""BNN-HP-MF: called a horseshoe in the paper, the group normal-Jeffreys layer in the scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .prediction import SAMPLES, Mode
from .stages import Stage

#: A unit is kept while its log dropout rate is below its layer's threshold.
THRESHOLDS = (-2.8, -3.0, -5.0)
FIRST_LAYER_VARIANCE_LIMIT = 0.04


def normal(*shape: int, mean: float, sd: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).normal_(mean, sd))


class NormalJeffreysLayer(nn.Module):
    """((x z) W^T + b) with z per example and input, by local reparametrisation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.z_mu = normal(inputs, mean=1.0, sd=0.01)
        self.z_logvar = normal(inputs, mean=-9.0, sd=0.01)
        self.weight_mu = normal(outputs, inputs, mean=0.0, sd=1.0 / math.sqrt(inputs))
        self.weight_logvar = normal(outputs, inputs, mean=-9.0, sd=0.01)
        self.bias_mu = nn.Parameter(torch.zeros(outputs))
        self.bias_logvar = normal(outputs, mean=-9.0, sd=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, in] -> [B, out], always a draw: the deterministic branch is commented out in the scripts."""
        z = self.z_mu + (0.5 * self.z_logvar).exp() * torch.randn_like(x)
        x = x * z
        mean = F.linear(x, self.weight_mu, self.bias_mu)
        variance = F.linear(x.square(), self.weight_logvar.exp(), self.bias_logvar.exp())
        return mean + variance.sqrt() * torch.randn_like(mean)

    def log_dropout_rate(self) -> Tensor:
        """[in]: log of the variance of z over its squared mean."""
        return self.z_logvar - (self.z_mu.square() + 1e-8).log()

    def kl(self) -> Tensor:
        rate = self.log_dropout_rate()
        group = 0.63576 * (1.8732 + 1.48695 * rate).sigmoid() - 0.5 * F.softplus(-rate) - 0.63576
        kl = -group.sum()
        for mu, logvar in ((self.weight_mu, self.weight_logvar), (self.bias_mu, self.bias_logvar)):
            kl = kl + 0.5 * (logvar.exp().sum() + mu.square().sum() - logvar.sum() - mu.numel())
        return kl


class AuthorsNormalJeffreys(nn.Module):
    compiles_whole = True

    def __init__(self, sizes: tuple[int, ...], n_data: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(NormalJeffreysLayer(i, o) for i, o in zip(sizes, sizes[1:]))
        self.n_data = n_data
        self.post_training = False

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, in] -> raw logits [B, classes]."""
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)

    def loss(self, x: Tensor, y: Tensor, batches: int) -> Tensor:
        with torch.no_grad():  # the scripts clip after a step: the same before the next
            self.layers[0].weight_logvar.clamp_(max=math.log(FIRST_LAYER_VARIANCE_LIMIT))
        return F.cross_entropy(self(x), y) + sum(layer.kl() for layer in self.layers) / self.n_data

    def stages(self, epochs: int, post_epochs: int) -> Iterator[Stage]:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-4, fused=True)
        yield Stage("training", epochs, optimizer, "trained")
        # Pruned weights are written where forward() does not look: the whole network trains on.
        self.post_training = True
        yield Stage("post-training", post_epochs, optimizer, "post-trained")

    def predictor(self) -> AuthorsNormalJeffreys:
        return self

    @torch.no_grad()
    def batch(self, x: Tensor, samples: int) -> dict[Mode, Tensor]:
        """Pruning changes no output and MEA draws as well: PRN and MEA are further draws of one network."""
        scores = {}
        for gamma in ("PRN",) if self.post_training else ("SIM", "PRN"):
            scores[(gamma, "SIM")] = torch.stack([self(x) for _ in range(samples)])
            scores[("ALL" if gamma == "SIM" else gamma, "MEA")] = self(x)[None]
        return scores

    @torch.no_grad()
    def pruned_density(self) -> float:
        """Weights left in matrices without the pruned units' rows and columns, over all weights."""
        kept = [int((layer.log_dropout_rate() < t).sum()) for layer, t in zip(self.layers, THRESHOLDS)]
        kept.append(len(self.layers[-1].bias_mu))
        left = sum(i * o for i, o in zip(kept, kept[1:]))
        return left / sum(layer.weight_mu.numel() for layer in self.layers)

    def densities(self) -> dict[tuple[str, int], float]:
        pruned = self.pruned_density()
        dense = {(gamma, r): 1.0 for gamma in ("SIM", "ALL") for r in (1, SAMPLES)}
        return {**dense, ("PRN", 1): pruned, ("PRN", SAMPLES): pruned}
