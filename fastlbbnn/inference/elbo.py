"""The evidence lower bound: the one place that scales the KL.

For a batch of M out of n observations and S draws of the weights,

    ELBO ~ (n/M) * mean_S sum_M log p(y | x, w) - KL,

an unbiased estimate of the bound on log p(data). ``loss`` is ``-(M/n) ELBO``: the batch's negative
log-likelihood, summed, plus the share of the KL that belongs to the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .._util.checks import check_samples
from ..nn.layer import BayesianLayer, bayesian_layers
from ..nn.modes import WeightMode
from ..nn.passes import Recorded, expand_samples, recorded_pass
from .likelihoods import negative_log_likelihood

Likelihood = str | Callable[[Tensor, Tensor], Tensor]


def _layers_or_raise(model: nn.Module) -> list[BayesianLayer]:
    layers = bayesian_layers(model)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no Bayesian layers, so it has no KL; expected layers of "
            "fastlbbnn.nn in the model"
        )
    return layers


def kl(model: nn.Module, likelihood: Likelihood | None = None) -> Tensor:
    """KL divergence of all Bayesian layers from their priors, a sum in nats; no state enters.

    Layers whose KL needs a draw (random logits of the indicators, for one) estimate it with a fresh one.

    With that of a ``likelihood`` that has parameters of its own, and a ``kl()`` of them.
    """
    return _sum_kl(_layers_or_raise(model), Recorded(), likelihood)


def _sum_kl(
    layers: list[BayesianLayer], recorded: Recorded, likelihood: Likelihood | None
) -> Tensor:
    """What layers left on the way, what the others compute now, and the likelihood's."""
    total = recorded.total_kl(layers)
    return total + likelihood.kl() if hasattr(likelihood, "kl") else total


class ELBO:
    """One estimate of the bound and its parts, as tensors that carry gradients."""

    def __init__(
        self, negative_log_likelihood: Tensor, kl: Tensor, batch: int, n_data: int, output: Tensor
    ) -> None:
        self._nll = negative_log_likelihood
        #: The whole KL, in nats.
        self.kl = kl
        self.batch = batch
        self.n_data = n_data
        #: What the network gave, [M, ...] or [samples, M, ...].
        self.output = output

    @property
    def log_likelihood(self) -> Tensor:
        """Sum over the batch, mean over the samples."""
        return -self._nll

    @property
    def loss(self) -> Tensor:
        """What to minimise: ``-(batch/n_data)`` times the bound."""
        return torch.add(self._nll, self.kl, alpha=self.batch / self.n_data)

    def tempered_loss(self, kl_weight: float) -> Tensor:
        """``loss`` with the KL's share multiplied by ``kl_weight``: no bound unless that is 1.

        For a warm-up: weights learn what they are for before the prior asks whether they are worth it.
        """
        return torch.add(self._nll, self.kl, alpha=kl_weight * self.batch / self.n_data)

    @property
    def value(self) -> Tensor:
        """The bound on the log evidence of all ``n_data`` observations, in nats."""
        return -torch.add(self.kl, self._nll, alpha=self.n_data / self.batch)

    def __repr__(self) -> str:
        return (
            f"ELBO(value={self.value.item():.2f}, log_likelihood={self.log_likelihood.item():.2f}, "
            f"kl={self.kl.item():.2f}, batch={self.batch}, n_data={self.n_data})"
        )


def elbo(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    *,
    n_data: int,
    likelihood: Likelihood = "categorical",
    samples: int = 1,
    mode: WeightMode | str | None = None,
    kl: Literal["closed", "sampled"] = "closed",
    generator: torch.Generator | None = None,
) -> ELBO:
    """Estimate the evidence lower bound of ``model`` from one batch.

    Args:
        model: any module with Bayesian layers in it; called once.
        x, target: the batch; their first axis counts observations.
        n_data: observations in the whole training set, which the KL is shared among.
        likelihood: "categorical", "bernoulli", "gaussian", "poisson", or a function of
            ``(output, target)`` that gives log-likelihoods (any shape; summed). An object with
            parameters of its own has a ``kl()`` of them, in nats, which is added to the layers'.
        samples: draws of the weights (M in the paper), all in one call.
        mode: as in ``fastlbbnn.weights``; None: what ``train()`` or ``eval()`` implies.
        kl: "closed" form (default), or the paper's "sampled" estimate, which is slow here.
        generator: where seeds come from.
    """
    check_samples(samples)
    if isinstance(n_data, bool) or not isinstance(n_data, int):
        raise TypeError(f"n_data={n_data!r} is a {type(n_data).__name__}; expected a positive int")
    if n_data < 1:
        raise ValueError(f"n_data={n_data}; expected the size of the training set, at least 1")
    batch = x.shape[0]
    if batch == 0:
        raise ValueError(f"x is {list(x.shape)}: an empty batch has no likelihood")
    if target.shape[0] != batch:
        raise ValueError(f"x has {batch} observations and target {target.shape[0]}; expected as many")

    layers = _layers_or_raise(model)
    several = None if samples == 1 else samples
    with recorded_pass(mode, samples=several, generator=generator, kl=kl) as recorded:
        output = model(x if several is None else expand_samples(x, samples))
        total = _sum_kl(layers, recorded, likelihood)
    if several is None:
        nll = negative_log_likelihood(output, target, likelihood)
    else:
        repeated = expand_samples(target, samples).flatten(0, 1)
        nll = negative_log_likelihood(output.flatten(0, 1), repeated, likelihood) / samples
    return ELBO(nll, total, batch, n_data, output)
