"""A selected network trains on: its kept weights as a module, and back into a selected network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import reference
from .._util.checks import check_positive_int
from ..nn.fixed import FixedLinear, FixedMLP
from ..nn.priors import Prior
from ..ops.fixed_mlp import Support
from .network import SparseLayer, SparseNetwork, places_in_blocks

if TYPE_CHECKING:
    from .model import SparseModel

#: A scale of zero has no logarithm: a bias that was certain starts from this one.
_LEAST_SCALE = 1e-4


def module_of(
    model: SparseModel, *, estimator: str = "local", prior: Prior | None = None, scale: float | None = None
) -> FixedMLP:
    """The kept weights of a selected network as a module: see ``SparseModel.trainable``."""
    from ..inference.likelihoods import Likelihood, set_likelihood

    network = model.network
    if not all(layer.relu for layer in network.layers[:-1]) or network.layers[-1].relu:
        raise ValueError("the network has not a ReLU after every layer but the last; expected a plain perceptron")
    if any(layer.rows == 0 for layer in network.layers):
        raise ValueError(
            "the model is a constant, of which no unit is left to train; select with reconnect=True, or at a lower "
            "threshold"
        )
    if not network.has_posterior and scale is None:
        raise ValueError(
            "the model holds means alone (posterior=False), and training needs scales to start from; give "
            "scale=, such as 0.01"
        )
    layers = []
    for i, layer in enumerate(network.layers):
        columns, cols = layer.columns.astype(np.int64), layer.cols
        if i == 0:  # of all features, as rows have them
            columns, cols = network.inputs[columns].astype(np.int64), network.in_features
        support = Support.of_places(
            torch.from_numpy(layer.row_of.astype(np.int64)), torch.from_numpy(columns), layer.rows, cols
        )
        made = FixedLinear(support, _has_bias(layer), estimator=estimator, prior=prior)
        with torch.no_grad():
            made.kappa.copy_(torch.from_numpy(layer.mean))
            made.rho.copy_(_rho(layer.scale, scale, layer.mean.size))
            if made.bias_kappa is not None and made.bias_rho is not None:
                made.bias_kappa.copy_(torch.from_numpy(layer.bias_mean))
                made.bias_rho.copy_(_rho(layer.bias_scale, scale, layer.rows))
        layers.append(made)
    module = FixedMLP(*layers)
    if model.likelihood is not None:
        set_likelihood(module, Likelihood.from_config(model.likelihood))
    return module


def _has_bias(layer: SparseLayer) -> bool:
    """Constants of removed units are biases, too."""
    return bool(layer.bias_mean.any()) or layer.bias_scale is None or bool(layer.bias_scale.any())


def _rho(scale: NDArray[np.float32] | None, given: float | None, count: int) -> Tensor:
    """softplus^-1: tau + log(1 - exp(-tau)), in float64."""
    if scale is None:
        assert given is not None
        tau = torch.full((count,), float(given), dtype=torch.float64)
    else:
        tau = torch.from_numpy(scale).double().clamp_min(_LEAST_SCALE if (scale == 0.0).any() else 0.0)
    return tau + torch.log(-torch.expm1(-tau))


def network_of(network: SparseNetwork, module: FixedMLP) -> SparseNetwork:
    """``network`` with the posterior of ``module``, which was made of it."""
    layers = []
    trained = module.layers()
    if [layer.nnz for layer in network.layers] != [layer.kappa.numel() for layer in trained]:
        raise ValueError(
            f"the module keeps {[layer.kappa.numel() for layer in trained]} weights and the network "
            f"{[layer.nnz for layer in network.layers]}; expected the module that trainable() made of it"
        )
    for layer, new in zip(network.layers, trained):
        mean, scale = _numpy(new.kappa), _numpy(reference.softplus(new.rho))
        bias_mean, bias_scale = layer.bias_mean, np.zeros(layer.rows, np.float32)
        if new.bias_kappa is not None and new.bias_rho is not None:
            bias_mean, bias_scale = _numpy(new.bias_kappa), _numpy(reference.softplus(new.bias_rho))
        blocks = layer.blocks
        if blocks is not None:
            places = places_in_blocks(layer)
            values, scales = (np.zeros_like(blocks.values) for _ in range(2))
            values.ravel()[places], scales.ravel()[places] = mean, scale
            blocks = replace(blocks, values=values, scales=scales)
        layers.append(
            replace(layer, mean=mean, scale=scale, bias_mean=bias_mean, bias_scale=bias_scale, blocks=blocks)
        )
    # Constants of removed units are in the biases now, with the biases' own posterior.
    return replace(network, layers=layers, constants=[])


def _numpy(t: Tensor) -> NDArray[np.float32]:
    return t.detach().cpu().to(torch.float32).numpy().copy()


def train_on(
    model: SparseModel,
    rows: Any,
    targets: Any,
    *,
    epochs: int,
    batch: int,
    step_size: float,
    n_data: int | None,
    estimator: str,
    prior: Prior | None,
    scale: float | None,
    kl_weight: float,
    seed: int,
) -> SparseModel:
    """See ``SparseModel.train_on``."""
    from ..inference.elbo import elbo
    from ..inference.optim import Adam, param_groups

    check_positive_int("epochs", epochs)
    check_positive_int("batch", batch)
    module = module_of(model, estimator=estimator, prior=prior, scale=scale)
    if model.likelihood is None:
        raise ValueError(
            "the model does not say what its outputs mean, so there is nothing to train by; expected a model "
            "of fastlbbnn.select(model, likelihood=...)"
        )
    inputs, _ = model._rows.of(rows, True)
    x = torch.as_tensor(inputs)
    y = _targets(model, targets)
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"{len(x)} rows and {len(y)} targets; expected the same number, at least one")
    n_data = len(x) if n_data is None else n_data
    optimizer = Adam(param_groups(module, weights=step_size))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=generator).split(batch):
            bound = elbo(module, x[chosen], y[chosen], n_data=n_data, generator=generator)
            optimizer.backward_step(bound.loss if kl_weight == 1.0 else bound.tempered_loss(kl_weight))
    return retrained(model, module, {"rows": len(x), "epochs": epochs, "step_size": step_size, "seed": seed})


def _targets(model: SparseModel, targets: Any) -> Tensor:
    """Targets as the network learned them: class numbers, or numbers that are scaled."""
    preparation = model.preparation
    if preparation is not None and preparation.target.is_scaled:
        return torch.from_numpy(preparation.scaled_target(np.asarray(targets, np.float64)))
    y = torch.as_tensor(targets)
    return y.to(torch.float32) if y.dtype == torch.float64 else y


def retrained(model: SparseModel, module: FixedMLP, about: Mapping[str, Any] | None = None) -> SparseModel:
    """``model`` with the posterior of ``module``: see ``SparseModel.with_posterior_of``."""
    from .model import SparseModel

    description = model.description
    likelihood: Any = getattr(module, "likelihood", None)
    provenance = dict(copy.deepcopy(dict(description.provenance)))
    if about is not None:
        provenance["trained_on"] = [*provenance.get("trained_on", []), dict(about)]
    return SparseModel(
        network_of(model.network, module), preparation=description.preparation,
        class_names=description.class_names,
        likelihood=description.likelihood if likelihood is None else likelihood, provenance=provenance,
        threads=model.threads,
    )
