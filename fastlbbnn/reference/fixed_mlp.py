"""Layers of a fixed structure: the specification, on masked dense tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .local_linear import MIN_VARIANCE
from .noise import Stream, normals
from .parameters import LayerParameters
from .sums import kl_sums, softplus

#: What is drawn in a pass: activations from their exact moments, weights, or nothing.
ESTIMATORS = ("local", "sampled", "means")


class Support(NamedTuple):
    """Where the kept weights of a layer [N, K] stand, in both orders; int32 tensors.

    Weights are stored by rows: weight ``j`` of row ``i``, ``row_offsets[i] <= j < row_offsets[i+1]``, stands in
    column ``columns[j]``, and columns ascend. The same weights by columns: ``rows_of[i]`` is the row of the
    ``i``-th, and weight ``j`` is the ``positions[j]``-th of them.
    """

    row_offsets: Tensor  # [N + 1]
    columns: Tensor  # [weights]
    col_offsets: Tensor  # [K + 1]
    rows_of: Tensor  # [weights]
    positions: Tensor  # [weights]

    @property
    def rows(self) -> int:
        return self.row_offsets.shape[0] - 1

    @property
    def cols(self) -> int:
        return self.col_offsets.shape[0] - 1

    @property
    def weights(self) -> int:
        """Weights that are kept."""
        return self.columns.shape[0]

    @staticmethod
    def of_mask(kept: Tensor) -> Support:
        """The support of a mask [N, K]."""
        rows, columns = kept.nonzero(as_tuple=True)
        return Support.of_places(rows, columns, kept.shape[0], kept.shape[1])

    @staticmethod
    def of_places(rows: Tensor, columns: Tensor, n: int, k: int) -> Support:
        """The support of weights in the order of rows, and of columns within them."""
        places = torch.argsort(columns, stable=True)
        positions = torch.empty_like(places)
        positions[places] = torch.arange(len(places), device=places.device)
        return Support(
            _offsets(rows, n), columns.to(torch.int32), _offsets(columns[places], k),
            rows[places].to(torch.int32), positions.to(torch.int32),
        )

    def by_rows(self) -> tuple[Tensor, Tensor]:
        """The row and the column of every weight."""
        counts = self.row_offsets.long().diff()
        rows = torch.repeat_interleave(torch.arange(self.rows, device=counts.device), counts)
        return rows, self.columns.long()

    def dense(self, values: Tensor) -> Tensor:
        """[N, K] with these values in place and zeros elsewhere."""
        rows, columns = self.by_rows()
        return values.new_zeros(self.rows, self.cols).index_put((rows, columns), values)


def _offsets(indices: Tensor, count: int) -> Tensor:
    """Where each of ``count`` runs begins in ascending indices, and where the last ends."""
    found = torch.zeros(count + 1, dtype=torch.int32, device=indices.device)
    found[1:] = torch.bincount(indices, minlength=count).cumsum(0)
    return found


def fixed_mlp(
    x: Tensor,
    layers: Sequence[LayerParameters],
    supports: Sequence[Support],
    *,
    seeds: Tensor,
    samples: int = 1,
    estimator: str = "local",
    included: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """``x: [M, K]`` or ``[S, M, K]`` -> ``y: [S, M, N]`` and the five sums of every layer ``[layers, 5]``.

    kappa, rho and omega hold the kept weights alone, [weights]; all others are exactly zero. Between the
    layers is a ReLU. With "local" activations are drawn as in ``local_linear``, with "sampled" weights and
    biases are, with the noise of ``gated_linear`` at their places, and "means" draws nothing. Without omega a
    kept weight is certain to be included: H is zero and A is ``included``, the layer's number of kept
    indicators (by default every kept weight has one).
    """
    given = x.dtype
    x = x.to(layers[0].kappa.dtype)
    if x.dim() == 2:
        x = x.expand(samples, *x.shape)
    sums = []
    for i, (layer, support) in enumerate(zip(layers, supports)):
        if i > 0:
            x = torch.relu(x)
        x = _layer(x, layer, support, seeds.reshape(-1)[i], samples, estimator)
        sums.append(_sums(layer, support.weights if included is None else included[i]))
    return x.to(given), torch.stack(sums)


def _layer(
    x: Tensor, layer: LayerParameters, support: Support, seed: Tensor, samples: int, estimator: str
) -> Tensor:
    kappa, rho, omega, bias_kappa, bias_rho = layer
    alpha = None if omega is None else torch.sigmoid(omega)
    tau = softplus(rho)
    if estimator == "sampled":
        if omega is not None:
            raise ValueError("weights with logits are not drawn here; expected no omega")
        return _sampled(x, layer, tau, support, seed, samples)
    mean = x @ support.dense(kappa if alpha is None else alpha * kappa).T
    if bias_kappa is not None:
        mean = mean + bias_kappa
    if estimator == "means":
        return mean
    spread = tau.square() if alpha is None else alpha * (tau.square() + (1.0 - alpha) * kappa.square())
    var = x.square() @ support.dense(spread).T
    if bias_rho is not None:
        var = var + softplus(bias_rho).square()
    std = var.clamp_min(MIN_VARIANCE).sqrt()
    eps = [normals(seed, Stream.ACTIVATION, s, *mean.shape[-2:]) for s in range(samples)]
    return mean + std * torch.stack(eps).to(x.dtype)


def _sampled(
    x: Tensor, layer: LayerParameters, tau: Tensor, support: Support, seed: Tensor, samples: int
) -> Tensor:
    at = support.by_rows()
    outputs = []
    for s in range(samples):
        eps = normals(seed, Stream.WEIGHT, s, support.rows, support.cols)[at].to(x.dtype)
        y = x[s] @ support.dense(layer.kappa + tau * eps).T
        if layer.bias_kappa is not None and layer.bias_rho is not None:
            noise = normals(seed, Stream.BIAS, s, 1, support.rows)[0].to(x.dtype)
            y = y + (layer.bias_kappa + softplus(layer.bias_rho) * noise)
        outputs.append(y)
    return torch.stack(outputs)


def _sums(layer: LayerParameters, included: int) -> Tensor:
    def row(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.unsqueeze(0)

    sums = kl_sums(layer.kappa.unsqueeze(0), layer.rho.unsqueeze(0), row(layer.omega))
    if layer.bias_kappa is not None and layer.bias_rho is not None:
        sums = sums + kl_sums(layer.bias_kappa.unsqueeze(0), layer.bias_rho.unsqueeze(0), None)
    if layer.omega is None and included:
        sums = sums + sums.new_tensor((0.0, float(included), 0.0, 0.0, 0.0))
    return sums
