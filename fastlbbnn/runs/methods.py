"""The paper's methods: how each builds a network, and the ways it predicts.

The names are the paper's: model, prior of the weights, and inference. A prediction is named by what it
does with the indicators (gamma) and the weights (beta), as in the paper's tables:

    SIM  drawn from the posterior        MED  the median probability model
    ALL  all weights                     PRN  what the method's pruning rule leaves
    MEA  the posterior mean of the weights
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import nn as layers
from .._util.registry import Registry
from ..nn import MLP, GaussianLinear, LBBNNLinear, MixtureLinear
from ..nn.linear import BayesianLinear
from ..nn.modes import WeightMode
from ..nn.priors import FixedPrior, Prior, make_prior
from ..structure.thresholds import resolve_threshold


@dataclass(frozen=True)
class Prediction:
    """One way to predict, with the paper's names for it."""

    gamma: str
    beta: str
    mode: WeightMode


@dataclass(frozen=True)
class Method:
    """A way to build a network, and the ways that it predicts in."""

    name: str
    summary: str
    #: (sizes, n_data, **options) -> network
    build: Callable[..., nn.Module]
    predictions: tuple[Prediction, ...]

    def median_threshold(self, network: nn.Module) -> float:
        """The threshold of the network's median model: 0.5, or where that leaves no path to an output, the
        closest threshold that does; 0.5 for methods without a median model."""
        if not any(p.gamma == "MED" for p in self.predictions):
            return 0.5
        return resolve_threshold(network, 0.5, warn=False)


_SIM = Prediction("SIM", "SIM", WeightMode.SAMPLED)
_ALL_SIM = Prediction("ALL", "SIM", WeightMode.SAMPLED)
_ALL_MEA = Prediction("ALL", "MEA", WeightMode.MEAN)
_MED = (
    Prediction("MED", "SIM", WeightMode.MEDIAN),
    Prediction("MED", "MEA", WeightMode.MEDIAN_MEAN),
)
_PRN = (
    Prediction("PRN", "SIM", WeightMode.MEDIAN),
    Prediction("PRN", "MEA", WeightMode.MEDIAN_MEAN),
)


def _prior(kind: str, n_data: int, **options: float) -> Prior:
    """A registered prior by its name; "bic" is the paper's supplement, psi = exp(-2 log n)."""
    if kind == "bic":
        return FixedPrior.paper(n_data)
    return make_prior(kind, **options)


def _lbbnn(inclusion: str, prior: str) -> Callable[..., nn.Module]:
    default_prior = prior

    def build(
        sizes: Sequence[int],
        n_data: int,
        *,
        layer: str = "lbbnn",
        prior: str = default_prior,
        prior_options: dict[str, float] | None = None,
        inclusion_options: dict[str, Any] | None = None,
        start: str = "default",
        start_logits: tuple[float, float] | None = None,
        **kwargs: Any,
    ) -> nn.Module:
        if layer == "lbbnn":
            # Where a recipe says nothing, the paper's Algorithm 1; the layers' own default is another.
            kwargs.setdefault("estimator", "concrete")
        network = MLP(
            *sizes, layer=layer, prior=_prior(prior, n_data, **(prior_options or {})),
            inclusion=inclusion, inclusion_options=inclusion_options, **kwargs,
        )
        _start(network, start, start_logits)
        return network

    return build


def _dense(layer: str) -> Callable[..., nn.Module]:
    def build(
        sizes: Sequence[int],
        n_data: int,
        *,
        sigma2: float | None = None,
        start: str = "default",
        **kwargs: Any,
    ) -> nn.Module:
        if sigma2 is not None:
            gaussian = layer == "gaussian"
            kwargs |= {"prior": FixedPrior(sigma2=sigma2)} if gaussian else {"sigma2": sigma2}
        network = MLP(*sizes, layer=layer, **kwargs)
        _start(network, start, None)
        return network

    return build


def _dropout(
    sizes: Sequence[int],
    n_data: int,
    *,
    dropout: float | Sequence[float] = 0.1,
    last_dropout: float | None = None,
    **kwargs: Any,
) -> nn.Module:
    """``dropout``: the rate that all layers start from, or one per layer.

    ``last_dropout``: another rate for the last layer.
    """
    count = len(sizes) - 1
    rates = list(dropout) if isinstance(dropout, Sequence) else [dropout] * count
    if len(rates) != count:
        raise ValueError(
            f"dropout={rates} for a network of {count} layers ({'-'.join(map(str, sizes))}); expected one "
            f"rate, or {count}"
        )
    if last_dropout is not None:
        rates[-1] = last_dropout
    of_layers = iter(rates)

    def layer(inputs: int, outputs: int, **options: Any) -> layers.ConcreteDropoutLinear:
        return layers.ConcreteDropoutLinear(inputs, outputs, dropout=next(of_layers), **options)

    return MLP(*sizes, layer=layer, **kwargs)


def _plain(sizes: Sequence[int], n_data: int) -> nn.Module:
    modules: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        modules += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


@torch.no_grad()
def _start(network: nn.Module, scheme: str, logits: tuple[float, float] | None) -> None:
    """Initial values: the layers' own ("default"), those of the authors' scripts ("paper"), or "wide": means
    with the variance 1 / inputs, three times the layers' own, so that signals keep their size while half of
    the weights are in.

    ``logits``: the range of the indicators' (mean) logits, where it is not the layers' own (0, 1).
    """
    if scheme not in ("default", "paper", "wide"):
        raise ValueError(f"start={scheme!r}; expected 'default', 'paper' or 'wide'")
    for layer in network.modules():
        if scheme == "wide" and isinstance(layer, BayesianLinear):
            layer.kappa.mul_(math.sqrt(3.0))
        if scheme == "paper" and isinstance(layer, (LBBNNLinear, GaussianLinear, MixtureLinear)):
            pairs: tuple[tuple[Any, Any], ...] = (
                (layer.kappa, layer.rho), (layer.bias_kappa, layer.bias_rho)
            )  # fmt: skip
            for mean, scale in pairs:
                if mean is not None and scale is not None:
                    mean.uniform_(-0.2, 0.2)
                    scale.uniform_(-5.0, -4.0)
        if logits is not None and isinstance(layer, LBBNNLinear) and layer.inclusion is not None:
            layer.inclusion.location().uniform_(*logits)


#: The paper's methods, and those that a user adds: ``METHODS.register(name, Method(name, ...))``.
METHODS: Registry[Method] = Registry("method")

for _method in (
    Method(
        "LBBNN-GP-MF", "independent indicators", _lbbnn("mean-field", "empirical-bayes"),
        (_SIM, _ALL_MEA, *_MED),
    ),
    Method(
        "LBBNN-GP-MVN", "logits of the indicators multivariate normal, full covariance",
        _lbbnn("mvn", "empirical-bayes"), (_SIM, _ALL_MEA, *_MED),
    ),
    Method(
        "LBBNN-GP-LFMVN", "logits of the indicators multivariate normal, low rank plus diagonal",
        _lbbnn("low-rank", "empirical-bayes"), (_SIM, _ALL_MEA, *_MED),
    ),
    Method(
        "LBBNN-fixed", "independent indicators, fixed priors psi = exp(-2 log n), sigma2 = 1",
        _lbbnn("mean-field", "bic"), (_SIM, _ALL_MEA, *_MED),
    ),
    Method("BNN-GP-MF", "dense, Gaussian prior", _dense("gaussian"), (_ALL_SIM, _ALL_MEA)),
    Method(
        "BNN-MGP-MF", "dense, scale-mixture prior", _dense("mixture"), (_ALL_SIM, _ALL_MEA)
    ),
    Method(
        "BNN-GP-CMF", "Concrete dropout, a learned rate per layer", _dropout, (_SIM, _ALL_MEA),
    ),
    Method(
        "BNN-HP-MF", "group horseshoe prior", _dense("horseshoe"), (_SIM, _ALL_MEA, *_PRN)
    ),
    Method(
        "BNN-NJ-MF", "group normal-Jeffreys prior", _dense("normal-jeffreys"),
        (_SIM, _ALL_MEA, *_PRN),
    ),
    Method("FNN", "a plain network", _plain, (_ALL_MEA,)),
    Method(
        "FNN-GMP", "a plain network, pruned by magnitude while it trains", _plain,
        (Prediction("PRN", "MEA", WeightMode.MEAN),),
    ),
):
    METHODS.register(_method.name, _method)


def find_method(name: str) -> Method:
    """A method by its name, however it is capitalised."""
    by_name = {key.lower(): method for key, method in METHODS.items()}
    method = by_name.get(name.lower())
    if method is None:
        raise ValueError(f"method={name!r}; expected one of {', '.join(METHODS)}")
    return method
