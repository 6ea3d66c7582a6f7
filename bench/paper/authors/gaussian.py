"""BNN-GP-MF and BNN-MGP-MF: dense Gaussian weights with a Gaussian or a scale-mixture prior."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import literal
from .lbbnn import uniform
from .prediction import SAMPLES, Mode
from .stages import Stage

#: The mixture's narrow component has the standard deviation e^-6 (the paper says variance).
LOG_NARROW_SD = -6.0


def log_prior(w: Tensor, mixture: bool) -> Tensor:
    """sum log N(w; 0, 1), or sum log(1/2 N(w; 0, 1) + 1/2 N(w; 0, sd e^-6)).

    The mixture as log N(w; 0, 1) + softplus(log ratio of the components) - log 2.
    """
    wide = -0.5 * w.square().sum() - literal.HALF_LOG_2PI * w.numel()
    if not mixture:
        return wide
    log_ratio = -LOG_NARROW_SD - 0.5 * math.expm1(-2.0 * LOG_NARROW_SD) * w.square()
    return wide + F.softplus(log_ratio).sum() - math.log(2.0) * w.numel()


class GaussianLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int, mixture: bool) -> None:
        super().__init__()
        self.mu = uniform(outputs, inputs, low=-0.2, high=0.2)
        self.rho = uniform(outputs, inputs, low=-5.0, high=-4.0)
        self.bias_mu = uniform(outputs, low=-0.2, high=0.2)
        self.bias_rho = uniform(outputs, low=-5.0, high=-4.0)
        self.mixture = mixture

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [B, in] -> [B, out], and log q - log p of the one draw that all rows share."""
        drawn, divergence = [], torch.zeros(())
        for mu, rho in ((self.mu, self.rho), (self.bias_mu, self.bias_rho)):
            tau, eps = F.softplus(rho), torch.randn_like(mu)
            w = torch.addcmul(mu, tau, eps)
            drawn.append(w)
            # log N(mu + tau eps; mu, tau^2): mu and the square of eps / tau cancel.
            log_q = -tau.log().sum() - 0.5 * eps.square().sum() - literal.HALF_LOG_2PI * w.numel()
            divergence = divergence + log_q - log_prior(w, self.mixture)
        return F.linear(x, *drawn), divergence

    def predict(self, x: Tensor, beta: str) -> Tensor:
        w, bias = self.mu, self.bias_mu
        if beta == "SIM":
            w = torch.addcmul(w, F.softplus(self.rho), torch.randn_like(w))
            bias = torch.addcmul(bias, F.softplus(self.bias_rho), torch.randn_like(bias))
        return F.linear(x, w, bias)


class AuthorsBNN(nn.Module):
    """No ReLU on the logits here, unlike in the LBBNN networks."""

    compiles_whole = True

    def __init__(self, sizes: tuple[int, ...], mixture: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GaussianLayer(i, o, mixture) for i, o in zip(sizes, sizes[1:]))

    def loss(self, x: Tensor, y: Tensor, batches: int) -> Tensor:
        divergence = torch.zeros(())
        for layer in self.layers:
            if layer is not self.layers[0]:
                x = x.relu()
            x, layer_divergence = layer(x)
            divergence = divergence + layer_divergence
        return F.cross_entropy(x, y, reduction="sum") + divergence / batches

    def stages(self, epochs: int, post_epochs: int) -> Iterator[Stage]:
        yield Stage("training", epochs, torch.optim.Adam(self.parameters(), lr=1e-4, fused=True), "trained")

    def predictor(self) -> AuthorsBNN:
        return self

    @torch.no_grad()
    def batch(self, x: Tensor, samples: int) -> dict[Mode, Tensor]:
        drawn = torch.stack([self._forward(x, "SIM") for _ in range(samples)])
        return {("ALL", "SIM"): drawn, ("ALL", "MEA"): self._forward(x, "MEA")[None]}

    def _forward(self, x: Tensor, beta: str) -> Tensor:
        for layer in self.layers:
            x = layer.predict(x if layer is self.layers[0] else x.relu(), beta)
        return F.log_softmax(x, dim=1)

    def densities(self) -> dict[tuple[str, int], float]:
        return {("ALL", 1): 1.0, ("ALL", SAMPLES): 1.0}
