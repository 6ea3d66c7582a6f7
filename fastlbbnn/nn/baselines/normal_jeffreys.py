"""Group normal-Jeffreys prior: scales without a scale of their own (Louizos et al., 2017)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.noise import normals
from ...reference import Stream, log_softplus, softplus
from ..layer import LAYERS
from .input_scales import InputScaleLinear


@LAYERS.register("normal-jeffreys")
class NormalJeffreysLinear(InputScaleLinear):
    """Weights w_nk = z_k v_nk, v ~ N(0, sigma2), with p(z_k) proportional to 1/|z_k|.

        q(z_k) = N(m_k, s_k^2),   alpha_k = s_k^2/m_k^2

    The prior is improper and the divergence, up to a constant, a function of alpha alone. With the fit of
    Molchanov et al. (2017), which tends to 0 as alpha grows,

        KL(z_k) = k1 - k1 sigmoid(k2 + k3 log alpha_k) + log(1 + 1/alpha_k)/2,
        k1, k2, k3 = 0.63576, 1.87320, 1.48695.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``.
        threshold: the median modes keep inputs whose log alpha is below it (``InputScaleLinear``).
        sigma2: prior variance of v and of the biases.
    """

    K1, K2, K3 = 0.63576, 1.87320, 1.48695

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        threshold: float = InputScaleLinear.DEFAULT_THRESHOLD,
        sigma2: float = 1.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, threshold=threshold, sigma2=sigma2, device=device,
            dtype=dtype,
        )
        for name in ("scale_kappa", "scale_rho"):
            self.register_parameter(
                name, nn.Parameter(torch.empty(in_features, device=device, dtype=dtype))
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as in other layers; scales near 1, with a standard deviation of 1 %."""
        super().reset_parameters()
        with torch.no_grad():
            self.scale_kappa.normal_(1.0, 0.01)
            self.scale_rho.fill_(math.log(math.expm1(0.01)))

    def log_alpha(self) -> Tensor:
        """log(s^2/m^2), [K]."""
        # A mean of zero is infinitely uncertain; 1e-8 keeps its logarithm finite.
        return 2.0 * log_softplus(self.scale_rho) - torch.log(self.scale_kappa.square() + 1e-8)

    def mean_scales(self) -> Tensor:
        return self.scale_kappa

    def sample_scales(self, seed: Tensor, samples: int, rows: int) -> Tensor:
        eps = normals(seed, Stream.WEIGHT, samples, rows, self.in_features, self.scale_kappa)
        return self.scale_kappa + softplus(self.scale_rho) * eps

    def scale_kl(self) -> Tensor:
        log_alpha = self.log_alpha()
        fit = self.K1 * torch.sigmoid(-(self.K2 + self.K3 * log_alpha))
        return (fit + 0.5 * F.softplus(-log_alpha)).sum()

    def scale_parameters(self) -> list[nn.Parameter]:
        return [self.scale_kappa, self.scale_rho]
