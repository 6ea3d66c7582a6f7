"""LBBNN-GP-MF, LBBNN-GP-MVN and LBBNN-GP-LFMVN: one layer, three ways to hold inclusion probabilities."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import literal
from .gated_draw import GatedDraw
from .prediction import SAMPLES, Mode
from .stages import Stage


def uniform(*shape: int, low: float, high: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(low, high))


class MeanFieldInclusion(nn.Module):
    """alpha = sigmoid(lambda), lambda ~ U(0, 1) at the start."""

    hyperprior_start = (1.0, 1.1)
    pretrain_step, train_step = 0.1, 1e-4

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.logit = uniform(outputs, inputs, low=0.0, high=1.0)

    def forward(self) -> Tensor:
        """alpha: [out, in]."""
        return self.logit.sigmoid()


class StaleMVNInclusion(nn.Module):
    """alpha = Phi(lambda), lambda ~ N(xi, I), drawn again at every call.

    The scripts declare a covariance over a row's inputs and train it, but take its Cholesky factor once, at
    the identity. What they train is thus never used, and is left out here.
    """

    hyperprior_start = (1.0, 3.1)
    pretrain_step, train_step = 0.1, 1e-2

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.xi = uniform(outputs, inputs, low=-1e-4, high=1e-4)

    def forward(self) -> Tensor:
        return torch.special.ndtr(self.xi + torch.randn_like(self.xi))


class RankOneInclusion(nn.Module):
    """alpha = Phi(lambda), lambda ~ N(xi, diag(d) + f f^T) for each row: rank 1 per row, nothing shared."""

    hyperprior_start = (1.0, 3.1)
    pretrain_step, train_step = 1e-2, 1e-4

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.xi = uniform(outputs, inputs, low=-1e-4, high=1e-4)
        self.diagonal = uniform(outputs, inputs, low=10.0, high=20.0)
        self.factor = uniform(outputs, inputs, low=-10.0, high=10.0)

    def forward(self) -> Tensor:
        shared = torch.randn(self.xi.shape[0], 1)
        return torch.special.ndtr(
            self.xi + self.factor * shared + self.diagonal.sqrt() * torch.randn_like(self.xi)
        )


@dataclass
class Exactness:
    """What the scripts switch to hard or rounded indicators, stage by stage."""

    weight_prior: bool = False
    indicator_prior: bool = False
    gates: bool = False


class AuthorsLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int, inclusion: type[nn.Module]) -> None:
        super().__init__()
        self.mu = uniform(outputs, inputs, low=-0.2, high=0.2)
        self.rho = uniform(outputs, inputs, low=-5.0, high=-4.0)
        self.inclusion = inclusion(inputs, outputs)
        self.bias_mu = uniform(outputs, low=-0.2, high=0.2)
        self.bias_rho = uniform(outputs, low=-5.0, high=-4.0)
        self.weight_a = uniform(low=1.0, high=1.1)
        self.weight_b = uniform(low=1.0, high=1.1)
        self.bias_a = uniform(outputs, low=1.0, high=1.1)
        self.bias_b = uniform(outputs, low=1.0, high=1.1)
        low, high = inclusion.hyperprior_start
        self.pa = uniform(low=low, high=high)
        self.pb = uniform(low=low, high=high)
        self.exact = Exactness()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [B, in] -> [B, out], and log q - log p of the one draw that all rows share."""
        u, eps = torch.rand_like(self.mu), torch.randn_like(self.mu)
        alpha = self.inclusion()
        # Rounded and detached, the indicators' prior is a constant but for pa and pb, whose step is then 0.
        prior_pb = None if self.exact.indicator_prior else self.pb
        w, gates, squares, log_q, log_prior = GatedDraw.apply(
            self.mu, self.rho, alpha, u, eps, prior_pb, self.exact.gates
        )
        if prior_pb is not None:
            log_prior = log_prior + w.numel() * (
                torch.lgamma(self.pa + self.pb)
                - torch.lgamma(1.0 + self.pa + self.pb)
                - torch.lgamma(self.pa)
                - torch.lgamma(self.pb)
            )
        if self.exact.weight_prior:
            gates = gates.detach()  # also rounded in the scripts: a change of the constant only

        t = torch.distributions.Gamma(self.weight_a, self.weight_b, validate_args=False).rsample()
        # literal.log_weight_prior, summed over the weights.
        slab = (
            self.weight_a * self.weight_b.log() + (self.weight_a - 0.5) * t - self.weight_b * t
            - torch.lgamma(self.weight_a) - literal.HALF_LOG_2PI
        )
        log_prior = log_prior + gates * slab - t * squares + (w.numel() - gates)

        bias_tau = F.softplus(self.bias_rho)
        bias = self.bias_mu + bias_tau * torch.randn_like(self.bias_mu)
        bias_t = torch.distributions.Gamma(self.bias_a, self.bias_b, validate_args=False).rsample()
        log_prior = log_prior + literal.log_weight_prior(bias, 1.0, self.bias_a, self.bias_b, bias_t)
        log_q = log_q + literal.gaussian_log_density(bias, self.bias_mu, bias_tau).sum()
        return F.linear(x, w, bias), log_q - log_prior

    @torch.no_grad()
    def predict(self, x: Tensor, alpha: Tensor, gamma: str, beta: str) -> tuple[Tensor, Tensor | None]:
        """[B, in] -> [B, out] and the indicators used [out, in] (None for ALL: weights times alpha)."""
        gates = None
        if gamma == "SIM":
            gates = torch.rand_like(alpha) < alpha
        elif gamma == "MED":
            gates = alpha > 0.5
        w, bias = self.mu, self.bias_mu
        if beta == "SIM":
            w = torch.addcmul(w, F.softplus(self.rho), torch.randn_like(w))
            bias = torch.addcmul(bias, F.softplus(self.bias_rho), torch.randn_like(bias))
        return F.linear(x, w * (alpha if gates is None else gates), bias), gates


class AuthorsLBBNN(nn.Module):
    """log_softmax(ReLU(layer3(ReLU(layer2(ReLU(layer1)))))): the logits go through a ReLU as well."""

    PRETRAIN_EPOCHS = 20
    PRETRAIN_UNTIL = 0.1

    def __init__(self, sizes: tuple[int, ...], inclusion: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AuthorsLayer(i, o, inclusion) for i, o in zip(sizes, sizes[1:]))

    def loss(self, x: Tensor, y: Tensor, batches: int) -> Tensor:
        """Sum of the batch's negative log-likelihoods + (log q - log p) / batches."""
        divergence = torch.zeros(())
        for layer in self.layers:
            x, layer_divergence = layer(x)
            x = x.relu()
            divergence = divergence + layer_divergence
        return F.nll_loss(F.log_softmax(x, dim=1), y, reduction="sum") + divergence / batches

    def stages(self, epochs: int, post_epochs: int) -> Iterator[Stage]:
        pretrain = min(self.PRETRAIN_EPOCHS, epochs)
        first = self.layers[0]
        stage = Stage(
            "pre-training", pretrain, self._optimizer(pretraining=True),
            until=lambda: float((first.pa / (first.pa + first.pb)).detach()) < self.PRETRAIN_UNTIL,
        )
        yield stage

        for number, layer in enumerate(self.layers):
            layer.exact.indicator_prior = True
            # The scripts name the first layer's switch three times over.
            layer.exact.weight_prior = number == 0
            for hyper in (layer.pa, layer.pb, layer.weight_a, layer.weight_b, layer.bias_a, layer.bias_b):
                hyper.requires_grad_(False)  # the scripts' step size is 0
        optimizer = self._optimizer(pretraining=False)
        yield Stage("training", epochs - stage.epochs_done, optimizer, result="trained")

        for layer in self.layers:
            layer.exact.gates = True
            layer.inclusion.requires_grad_(False)
        # Left in, they would still move by Adam's moments.
        for parameter in (p for layer in self.layers for p in layer.inclusion.parameters()):
            parameter.grad = None
        yield Stage("post-training", post_epochs, optimizer, result="post-trained")

    def _optimizer(self, pretraining: bool) -> torch.optim.Optimizer:
        groups: list[dict] = []
        for layer in self.layers:
            weights = [layer.mu, layer.rho, layer.bias_mu, layer.bias_rho]
            kind = layer.inclusion
            step = kind.pretrain_step if pretraining else kind.train_step
            groups += [{"params": weights, "lr": 1e-4}, {"params": list(kind.parameters()), "lr": step}]
            if pretraining:
                precisions = [layer.weight_a, layer.weight_b, layer.bias_a, layer.bias_b]
                groups += [{"params": [layer.pa, layer.pb], "lr": 1e-3}, {"params": precisions, "lr": 1e-5}]
        return torch.optim.Adam(groups, fused=True)

    def predictor(self) -> LBBNNPredictor:
        return LBBNNPredictor(self)

    @torch.no_grad()
    def mean_inclusions(self) -> list[float]:
        """A layer's mean of alpha; of one draw where alpha is random."""
        return [float(layer.inclusion().mean()) for layer in self.layers]


class LBBNNPredictor:
    """Predictions a test batch at a time, and the densities that the scripts count meanwhile."""

    def __init__(self, network: AuthorsLBBNN) -> None:
        self.network = network
        self.weights = sum(layer.mu.numel() for layer in network.layers)
        self.ever_on = [torch.zeros(layer.mu.shape, dtype=torch.bool) for layer in network.layers]
        self.shares: dict[str, list[float]] = {"SIM": [], "MED": []}

    @torch.no_grad()
    def batch(self, x: Tensor, samples: int) -> dict[Mode, Tensor]:
        """x: [B, in] -> log-probabilities [samples, B, classes] a mode, [1, B, classes] for MEA."""
        found: dict[Mode, list[Tensor]] = {}
        for gamma in ("SIM", "MED"):
            for _ in range(samples):
                alphas = [layer.inclusion() for layer in self.network.layers]
                found.setdefault((gamma, "SIM"), []).append(self._forward(x, alphas, gamma, "SIM"))
        for gamma in ("ALL", "MED"):  # with the last alpha drawn, where it is random
            found[(gamma, "MEA")] = [self._forward(x, alphas, gamma, "MEA")]
        return {mode: torch.stack(outputs) for mode, outputs in found.items()}

    def _forward(self, x: Tensor, alphas: list[Tensor], gamma: str, beta: str) -> Tensor:
        on = 0
        for layer, alpha, ever in zip(self.network.layers, alphas, self.ever_on):
            x, gates = layer.predict(x, alpha, gamma, beta)
            x = x.relu()
            if gates is not None:
                on += int(gates.sum())
            if gamma == "SIM":
                ever |= gates
        if gamma in self.shares:
            self.shares[gamma].append(on / self.weights)
        return F.log_softmax(x, dim=1)

    def densities(self) -> dict[tuple[str, int], float]:
        """(gamma, R) -> density. R = 10 of SIM: weights that were on in any draw for any test batch.

        The scripts count draws beside the ones they predict with, here they are the same: equal in law.
        """
        on = sum(int(ever.sum()) for ever in self.ever_on)
        median = statistics.median(self.shares["MED"])
        return {
            ("SIM", 1): statistics.median(self.shares["SIM"]),
            ("SIM", SAMPLES): on / self.weights,
            ("ALL", 1): 1.0,
            ("MED", 1): median,
            ("MED", SAMPLES): median,
        }
