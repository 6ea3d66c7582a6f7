"""The evidence lower bound: the one place that scales the KL.

For a batch of M out of n observations and S draws of the weights,

    ELBO ~ (n/M) * mean_S sum_M log p(y | x, w) - KL,

an unbiased estimate of the bound on log p(data). ``loss`` is ``-(M/n) ELBO``: the batch's negative
log-likelihood, summed, plus the share of the KL that belongs to the batch.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal, SupportsIndex

import torch
from torch import Tensor, nn

from .._util.checks import check_samples
from .._util.dtypes import HALF
from ..nn.fixed import FixedLinear
from ..nn.layer import BayesianLayer, bayesian_layers
from ..nn.linear import BayesianLinear
from ..nn.modes import WeightMode
from ..nn.passes import Recorded, current_pass, expand_samples, recorded_pass
from .draws import call, used_repeatedly, works_on_last_axis
from .likelihoods import (
    Likelihood,
    LogLikelihood,
    check_not_nan,
    likelihood_of,
    negative_log_likelihood,
    stated_likelihood,
)
from .watch import watch


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

    With that of a likelihood that has parameters of its own: the model's, or the one given.
    """
    own = stated_likelihood(model) if likelihood is None else likelihood
    return _sum_kl(_layers_or_raise(model), Recorded(), own)


def _sum_kl(layers: list[BayesianLayer], recorded: Recorded, likelihood: object) -> Tensor:
    """What layers left on the way, what the others compute now, and the likelihood's."""
    total = recorded.total_kl(layers)
    if isinstance(likelihood, Likelihood) and type(likelihood).kl is Likelihood.kl:
        return total  # no parameters of its own
    own = likelihood.kl() if hasattr(likelihood, "kl") else None
    return total if own is None else total + own


class ELBO:
    """One estimate of the bound and its parts, as tensors that carry gradients."""

    def __init__(
        self,
        negative_log_likelihood: Tensor,
        kl: Tensor,
        batch: int,
        n_data: int,
        output: Tensor,
        is_bound: bool = True,
    ) -> None:
        self._nll = negative_log_likelihood
        #: The whole KL, in nats.
        self.kl = kl
        self.batch = batch
        self.n_data = n_data
        #: What the network gave, [M, ...] or [samples, M, ...].
        self.output = output
        #: Whether the draws are of the posterior that the KL is of. Relaxed gates (``estimator="concrete"``
        #: in train()) have other moments than indicators: with them ``value`` estimates a surrogate, which
        #: can lie above the log evidence. So do draws of the median model.
        self.is_bound = is_bound

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
        """The bound on the log evidence of all ``n_data`` observations, in nats, where ``is_bound``.

        Else what training climbs instead: ``mode="sampled"`` gives the bound of any network.
        """
        return -torch.add(self.kl, self._nll, alpha=self.n_data / self.batch)

    def __repr__(self) -> str:
        return (
            f"ELBO({'value' if self.is_bound else 'surrogate'}={self.value.item():.2f}, "
            f"log_likelihood={self.log_likelihood.item():.2f}, "
            f"kl={self.kl.item():.2f}, batch={self.batch}, n_data={self.n_data})"
        )


def elbo(
    model: nn.Module,
    x: Any,
    target: Tensor,
    *,
    n_data: SupportsIndex,
    likelihood: str | Likelihood | LogLikelihood | None = None,
    samples: int = 1,
    mode: WeightMode | str | None = None,
    kl: Literal["closed", "sampled"] = "closed",
    generator: torch.Generator | None = None,
) -> ELBO:
    """Estimate the evidence lower bound of ``model`` from one batch.

    Args:
        model: any module with Bayesian layers in it.
        x: the model's input, a tensor (or a tuple or mapping of arguments).
        target: the batch's targets; their first axis counts observations.
        n_data: observations in the whole training set, which the KL is shared among.
        likelihood: None is what the model states (``fastlbbnn.set_likelihood``). Else a name, a
            ``Likelihood``, or a function of ``(output, target)`` that gives the log-likelihood of every
            observation, [M], neither averaged nor summed.
        samples: draws of the weights (M in the paper). Networks that work on the last axis alone take
            all of them in one call, others are called once per draw.
        mode: as in ``fastlbbnn.weights``; None: what ``train()`` or ``eval()`` implies.
        kl: "closed" form (default), or the paper's "sampled" estimate, which is slow here.
        generator: where seeds come from.
    """
    if samples != 1:
        check_samples(samples)
    if not isinstance(target, Tensor):
        target = torch.as_tensor(target)
    if not isinstance(x, Tensor) and hasattr(x, "__array__"):
        raise TypeError(
            f"x is a {type(x).__name__}; expected a tensor (torch.as_tensor(x, dtype=torch.float32))"
        )
    if target.dim() == 0 or target.shape[0] == 0:
        raise ValueError(f"target is {list(target.shape)}: an empty batch has no likelihood")
    batch = target.shape[0]
    n_data = n_data if type(n_data) is int else _integer(n_data)
    if n_data < batch:
        raise ValueError(
            f"n_data={n_data} with a batch of {batch}; expected the size of the whole training set, in "
            "observations (not batches), which share the KL"
        )
    if likelihood is None:
        likelihood = model.__dict__.get("likelihood")  # where most models have it
        if not isinstance(likelihood, Likelihood):
            likelihood = likelihood_of(model)
    elif isinstance(likelihood, Likelihood) or not callable(likelihood):
        likelihood = likelihood_of(model, likelihood)

    layers = _layers_or_raise(model)
    if samples == 1:
        with recorded_pass(mode, generator=generator, kl=kl) as recorded:
            output = model(x) if isinstance(x, Tensor) else call(model, x)
            total = _sum_kl(layers, recorded, likelihood)
        if isinstance(output, Tensor) and output.shape[:1] != target.shape[:1]:
            raise _other_batch(x, output, target)
        if isinstance(likelihood, Likelihood) and isinstance(output, Tensor) and output.dtype not in HALF:
            nll = likelihood.nll(output, target)  # as below, without a call where every step comes along
        else:
            nll = negative_log_likelihood(output, target, likelihood)
    elif isinstance(x, Tensor) and works_on_last_axis(model):
        with recorded_pass(mode, samples=samples, generator=generator, kl=kl) as recorded:
            output = model(expand_samples(x, samples))
            total = _sum_kl(layers, recorded, likelihood)
        if output.shape[1:2] != target.shape[:1]:
            raise _other_batch(x, output[0], target)
        if isinstance(likelihood, Likelihood):
            repeated = expand_samples(target, samples).flatten(0, 1)
            nll = negative_log_likelihood(output.flatten(0, 1), repeated, likelihood) / samples
        else:  # a function knows of no draws
            nll = torch.stack([negative_log_likelihood(one, target, likelihood) for one in output]).mean()
    else:
        output, nll, total = _draw_after_draw(
            model, layers, x, target, likelihood, samples, mode, kl, generator
        )
    if nll.device.type == "cpu" and not torch.compiler.is_compiling() and not math.isfinite(nll.item()):
        _explain(x, target)
    if isinstance(likelihood, nn.Module):
        watch(likelihood, layers)
    return ELBO(nll, total, batch, n_data, output, _draws_posterior(layers, mode))


def _draws_posterior(layers: list[BayesianLayer], mode: WeightMode | str | None) -> bool:
    """Whether a pass in this mode draws all layers' weights, or their outputs, from the posterior."""
    if mode is None:
        mode = current_pass().mode
    for layer in layers:
        own = mode or (WeightMode.RELAXED if layer.training else WeightMode.MEAN)
        if own == WeightMode.RELAXED:
            # From the dictionaries, since every training step asks.
            if (
                isinstance(layer, BayesianLinear) and layer.estimator == "concrete"
                and layer._modules["inclusion"] is not None
            ):  # fmt: skip
                return False
            if type(layer) is FixedLinear and layer.estimator == "means":
                return False
        elif own != WeightMode.SAMPLED:
            return False
    return True


def _draw_after_draw(
    model: nn.Module,
    layers: list[BayesianLayer],
    x: Any,
    target: Tensor,
    likelihood: Likelihood | LogLikelihood,
    samples: int,
    mode: WeightMode | str | None,
    kl: Literal["closed", "sampled"],
    generator: torch.Generator | None,
) -> tuple[Any, Tensor, Tensor]:
    """Outputs [samples, ...], the mean negative log-likelihood and the mean KL."""
    outputs, nlls, totals = [], [], []
    with used_repeatedly(layers):
        for _ in range(samples):
            with recorded_pass(mode, generator=generator, kl=kl) as recorded:
                output = call(model, x)
                totals.append(_sum_kl(layers, recorded, likelihood))
            if isinstance(output, Tensor) and output.shape[:1] != target.shape[:1]:
                raise _other_batch(x, output, target)
            nlls.append(negative_log_likelihood(output, target, likelihood))
            outputs.append(output)
    output = torch.stack(outputs) if isinstance(outputs[0], Tensor) else outputs
    return output, torch.stack(nlls).mean(), torch.stack(totals).mean()


def _integer(n_data: object) -> int:
    """An int, also from numpy's."""
    try:
        if not isinstance(n_data, bool):
            return operator.index(n_data)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"n_data={n_data!r} is a {type(n_data).__name__}; expected a positive int")


def _other_batch(x: Any, output: Tensor, target: Tensor) -> ValueError:
    given = f"x is {list(x.shape)}, " if isinstance(x, Tensor) else ""
    return ValueError(
        f"{given}the output {list(output.shape)} and the target {list(target.shape)}; expected outputs and "
        "targets whose first axis counts the observations"
    )


def _explain(x: Any, target: Tensor) -> None:
    """ValueError if it is the data that make the likelihood infinite or nan."""
    for name, values in (("x", x), ("target", target)):
        if isinstance(values, Tensor):
            check_not_nan(name, values)
