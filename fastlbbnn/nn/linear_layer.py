"""Bayesian layers that are linear maps of the last axis: shapes, inputs, Gaussian weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int
from .._util.dtypes import may_mix
from .._util.memory import staggered_empty
from ..reference.parameters import LayerParameters
from .layer import BayesianLayer
from .passes import Pass


class LinearLayer(BayesianLayer):
    """``[..., in_features] -> [..., out_features]``, drop-in for ``nn.Linear``; kappa is [out, in]."""

    #: Whether a layer of float32 takes inputs in half precision; outputs then have their dtype.
    mixes_precision = False

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = check_positive_int("in_features", in_features)
        self.out_features = check_positive_int("out_features", out_features)

    def _rows(self, x: Tensor, current: Pass) -> Tensor:
        """``x``, checked, as [M, K], or [samples, M, K] where each sample has its own."""
        kappa: Any = self._parameters.get("kappa")
        if kappa is None:
            kappa = self.kappa
        shape, samples = x.shape, current.samples
        if shape[-1] != self.in_features:
            raise ValueError(f"x is {list(shape)}; expected a last axis of {self.in_features} for {self}")
        if x.dtype is not kappa.dtype and not (self.mixes_precision and may_mix(x.dtype, kappa.dtype)):
            raise TypeError(f"x is {x.dtype} and the layer {kappa.dtype}; expected one dtype")
        if x.device != kappa.device:
            raise ValueError(f"x is on {x.device} and the layer on {kappa.device}; expected one device")
        if samples is None:
            return x if len(shape) == 2 else x.reshape(-1, self.in_features)
        if len(shape) < 2 or shape[0] != samples:
            raise ValueError(
                f"x is {list(shape)}; within weights(samples={samples}) its first axis is the "
                "sample axis (add it with fastlbbnn.expand_samples)"
            )
        if x.stride(0) == 0:
            return x[0].reshape(-1, self.in_features)
        return x if len(shape) == 3 else x.reshape(samples, -1, self.in_features)

    def _shaped(self, y: Tensor, x: Tensor) -> Tensor:
        """Outputs with the leading axes of ``x``."""
        return y if y.dim() == x.dim() else y.view(*x.shape[:-1], self.out_features)


class GaussianWeights(LinearLayer):
    """Independent Gaussian weights and biases: means ``kappa`` and standard deviations softplus(rho)."""

    rho: Tensor
    bias_kappa: Tensor | None
    bias_rho: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(in_features, out_features)
        kwargs = {"device": device, "dtype": dtype}
        shape = (out_features, in_features)
        self.kappa = nn.Parameter(staggered_empty(shape, 0, **kwargs))
        self.rho = nn.Parameter(staggered_empty(shape, 1, **kwargs))
        for name in ("bias_kappa", "bias_rho"):
            value = nn.Parameter(torch.empty(out_features, **kwargs)) if bias else None
            self.register_parameter(name, value)

    def reset_parameters(self) -> None:
        """Means as in ``nn.Linear``, scales a tenth of their spread."""
        self._reset_weights()

    def _reset_weights(self) -> None:
        bound = 1.0 / math.sqrt(self.in_features)
        rho = math.log(math.expm1(0.1 * bound))
        with torch.no_grad():
            self.kappa.uniform_(-bound, bound)
            self.rho.uniform_(rho - 0.5, rho + 0.5)
            if self.bias_kappa is not None and self.bias_rho is not None:
                self.bias_kappa.uniform_(-bound, bound)
                self.bias_rho.uniform_(rho - 0.5, rho + 0.5)

    def _gaussian(self, omega: Tensor | None = None) -> LayerParameters:
        """The layer's parameters, with these logits, as fast as possible."""
        # Straight from the dictionary: attribute access through nn.Module is slow enough to show in
        # a training step. What torch.nn.utils.parametrize, prune or DataParallel replaced is not in there.
        p = self._parameters
        try:
            return LayerParameters(p["kappa"], p["rho"], omega, p["bias_kappa"], p["bias_rho"])  # type: ignore[arg-type]
        except KeyError:
            return LayerParameters(self.kappa, self.rho, omega, self.bias_kappa, self.bias_rho)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias_kappa is not None}"
