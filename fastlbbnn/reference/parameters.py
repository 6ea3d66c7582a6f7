"""The tensors that a layer's posterior is made of, named once for the whole library."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LayerParameters(NamedTuple):
    """A layer of N outputs and K inputs; None where it has no indicators, or no biases."""

    #: Means [N, K].
    kappa: Tensor
    #: Untransformed scales [N, K]: tau = softplus(rho).
    rho: Tensor
    #: Logits of the indicators on the grid of blocks.
    omega: Tensor | None = None
    #: Means [N] and untransformed scales [N] of the biases, which are never gated.
    bias_kappa: Tensor | None = None
    bias_rho: Tensor | None = None
