"""Group horseshoe prior: half-Cauchy scales for a layer and each of its inputs (BNN-HP-MF in the paper)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...ops.noise import normals
from ...reference import Stream, log_softplus, softplus
from ..layer import LAYERS
from .input_scales import InputScaleLinear


def lognormal_kl(mu: Tensor, rho: Tensor, sign: Tensor, log_scale: Tensor | float) -> Tensor:
    """KL of LogNormal(mu, sd^2), sd = softplus(rho), from Gamma(1/2, scale) or InvGamma(1/2, rate 1).

    For a Gamma of shape 1/2 and scale t, log p(x) = -log(x)/2 - x/t - log(pi t)/2, and a log-normal has
    entropy mu + log(2 pi e sd^2)/2 and mean exp(mu + sd^2/2), so that

        KL = exp(mu - log t + sd^2/2) - (mu - log t + log sd^2 + 1 + log 2)/2.

    x is InvGamma(1/2, 1) exactly if 1/x is Gamma(1/2, 1), which turns mu over: ``sign`` -1, log_scale 0.
    """
    shift = sign * mu - log_scale
    variance = softplus(rho).square()
    log_variance = 2.0 * log_softplus(rho)
    return torch.exp(shift + 0.5 * variance) - 0.5 * (shift + log_variance + 1.0 + math.log(2.0))


@LAYERS.register("horseshoe")
class HorseshoeLinear(InputScaleLinear):
    """Weights w_nk = z_k v_nk, v ~ N(0, sigma2), z_k = g l_k, with half-Cauchy scales.

        g ~ C+(0, global_scale) for the layer,   l_k ~ C+(0, 1) for each input k

    A half-Cauchy's square is a product of two simpler variables, g^2 = a b with a ~ Gamma(1/2, scale
    global_scale^2) and b ~ InvGamma(1/2, 1), and likewise l_k^2. Each has a log-normal posterior, so that
    log g and log l_k are Gaussian and every divergence is known (Louizos, Ullrich and Welling, 2017):
    ``lognormal_kl``.

    Pruning (``InputScaleLinear``) looks at l_k, the input's own scale. With s_k^2 the variance of log l_k,
    alpha_k = exp(s_k^2) - 1. An input about which nothing is known has s_k^2 = 1, where the KL is smallest.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``.
        threshold: the median modes keep inputs whose log alpha is below it.
        global_scale: of the layer's half-Cauchy. Small values ask for few inputs; the tail is so heavy that
            the data overrule them.
        sigma2: prior variance of v and of the biases.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        threshold: float = InputScaleLinear.DEFAULT_THRESHOLD,
        global_scale: float = 1e-5,
        sigma2: float = 1.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, threshold=threshold, sigma2=sigma2, device=device,
            dtype=dtype,
        )
        if not 0.0 < global_scale < math.inf:
            raise ValueError(f"global_scale={global_scale}; expected a positive number")
        self.global_scale = float(global_scale)
        # Row 0 is log a, the Gamma variable, row 1 log b, the inverse Gamma one.
        for name, shape in (("global", (2, 1)), ("local", (2, in_features))):
            for parameter in (f"{name}_kappa", f"{name}_rho"):
                value = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(parameter, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as in other layers; scales near 1, whose Gamma parts lie where their prior does."""
        super().reset_parameters()
        with torch.no_grad():
            for kappa, rho, scale in (
                (self.global_kappa, self.global_rho, self.global_scale),
                (self.local_kappa, self.local_rho, 1.0),
            ):
                # The Gamma variable at its prior mean; the heavy-tailed one makes up for it.
                kappa[0] = 2.0 * math.log(scale) - math.log(2.0)
                kappa[1] = -kappa[0]
                rho.fill_(math.log(math.expm1(0.1)))

    def _log_moments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and standard deviation of log g ([1] each) and of log l ([K] each).

        log z = (log a + log b)/2, so variances of a and b enter by a quarter.
        """
        moments = []
        for kappa, rho in (
            (self.global_kappa, self.global_rho), (self.local_kappa, self.local_rho)
        ):
            moments += [0.5 * kappa.sum(0), 0.5 * softplus(rho).square().sum(0).sqrt()]
        return tuple(moments)

    def log_scale_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of log z_k under the posterior, [K] each."""
        global_mean, global_std, local_mean, local_std = self._log_moments()
        return global_mean + local_mean, global_std.square() + local_std.square()

    def mean_scales(self) -> Tensor:
        mean, variance = self.log_scale_moments()
        return torch.exp(mean + 0.5 * variance)

    def sample_scales(self, seed: Tensor, samples: int, rows: int) -> Tensor:
        global_mean, global_std, local_mean, local_std = self._log_moments()
        shared = normals(seed, Stream.BIAS, samples, rows, 1, self.local_kappa)
        own = normals(seed, Stream.WEIGHT, samples, rows, self.in_features, self.local_kappa)
        return torch.exp(global_mean + local_mean + global_std * shared + local_std * own)

    def scale_kl(self) -> Tensor:
        sign = self.local_kappa.new_tensor([[1.0], [-1.0]])
        scale = self.local_kappa.new_tensor([[2.0 * math.log(self.global_scale)], [0.0]])
        of_layer = lognormal_kl(self.global_kappa, self.global_rho, sign, scale)
        return of_layer.sum() + lognormal_kl(self.local_kappa, self.local_rho, sign, 0.0).sum()

    def log_alpha(self) -> Tensor:
        """log(Var[l_k]/E[l_k]^2), [K]."""
        return torch.log(torch.expm1(self._log_moments()[3].square()))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "global_scale": self.global_scale}

    def scale_parameters(self) -> list[nn.Parameter]:
        return [self.global_kappa, self.global_rho, self.local_kappa, self.local_rho]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, global_scale={self.global_scale:g}"
