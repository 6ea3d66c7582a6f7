"""What layers share whose inputs have random scales: all weights of an input shrink together."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import ops
from ...ops.dispatch import call
from ...ops.gated_linear import GATED_LINEAR
from ...ops.local_linear import LOCAL_LINEAR
from ..linear_layer import GaussianWeights
from ..modes import WeightMode
from ..passes import current_pass
from ..priors import FixedPrior


class InputScaleLinear(GaussianWeights):
    """Weights w_nk = z_k v_nk with Gaussian v and a random scale z_k for each input.

        q(v) = N(kappa, softplus(rho)^2),  p(v) = N(0, sigma2),   KL = KL(v) + KL(biases) + KL(scales)

    A training pass draws scales for every observation and then activations by local reparametrisation,
    whose moments are exact given the scales; a sampled pass draws networks, scales and weights the same for
    all observations. Subclasses say what the scales are.

    The median modes prune. An input that explains something has a scale that the data determine; that of
    the others is as uncertain as their prior, or more. So an input is kept if

        log alpha_k < threshold,   alpha_k = Var[z_k]/E[z_k]^2

    of its own scale under q, a number that rescaling a layer and the next one does not change.
    """

    #: Keeps scales whose standard deviation is below 47 % of their mean. What training separates lies on
    #: both sides: on digits with noise inputs, used ones below -2.5 and the others above -1.2.
    DEFAULT_THRESHOLD = -1.5

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        *,
        threshold: float,
        sigma2: float,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        if math.isnan(threshold):
            raise ValueError("threshold=nan; expected a number that log alpha is compared with")
        self.threshold = float(threshold)
        self._gaussian_prior = FixedPrior(sigma2=sigma2)

    # --- what subclasses give ------------------------------------------------------------------

    def mean_scales(self) -> Tensor:
        """E[z], [K]."""
        raise NotImplementedError

    def sample_scales(self, seed: Tensor, samples: int, rows: int) -> Tensor:
        """Draws of z, [samples, rows, K]."""
        raise NotImplementedError

    def scale_kl(self) -> Tensor:
        """KL of the scales' posterior from their prior, in nats."""
        raise NotImplementedError

    def log_alpha(self) -> Tensor:
        """How uncertain each input's own scale is, [K]."""
        raise NotImplementedError

    def scale_parameters(self) -> list[nn.Parameter]:
        raise NotImplementedError

    @torch.no_grad()
    def kept_inputs(self, threshold: float | None = None) -> Tensor:
        """Which inputs the pruning rule keeps, bool [K]; ``threshold`` None is the layer's."""
        return self.log_alpha() < (self.threshold if threshold is None else threshold)

    # --- the protocol --------------------------------------------------------------------------

    def kl(self) -> Tensor:
        return self._kl(ops.kl_sums(*self._gaussian()))

    def _kl(self, sums: Tensor) -> Tensor:
        return self._gaussian_prior.kl(sums, 0) + self.scale_kl()

    def density(
        self, mode: WeightMode | str = WeightMode.MEDIAN_MEAN, threshold: float = 0.5
    ) -> float:
        """Share of the weights that a mode uses: the median modes keep those of the inputs kept.

        The layer's own threshold applies, not ``threshold``, a probability. What the next layer prunes is
        not counted: that takes the network.
        """
        if WeightMode(mode) in (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN):
            return self.kept_inputs().to(torch.float32).mean().item()
        return 1.0

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        weights = [p for p in self._gaussian() if isinstance(p, nn.Parameter)]
        return {"weights": weights, "scales": self.scale_parameters()}

    def kept(self, threshold: float = 0.5) -> Tensor:
        return self.kept_inputs().expand(self.out_features, self.in_features)

    def settings(self) -> dict[str, Any]:
        return {"threshold": self.threshold}

    def mean_weight(self, mode: WeightMode = WeightMode.MEAN, threshold: float = 0.5) -> Tensor:
        """Posterior mean kappa E[z], [N, K]; with MEDIAN_MEAN zero where the input is pruned."""
        scales = self.mean_scales()
        if mode is WeightMode.MEDIAN_MEAN:
            scales = scales * self.kept_inputs()
        return self.kappa * scales

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [..., out_features]``."""
        current = current_pass()
        mode = self._pass_mode(current)
        rows, single, samples = self._rows(x, current), current.samples is None, current.samples or 1
        self._refuse_sampled_kl(current)
        if not mode.random:
            return F.linear(x, self.mean_weight(mode), self.bias_kappa)
        relaxed = mode is WeightMode.RELAXED
        seeds = current.draw_seed(x.device, (2,))
        scales = self.sample_scales(seeds[0], samples, rows.shape[-2] if relaxed else 1)
        if mode is WeightMode.MEDIAN:
            scales = scales * self.kept_inputs()
        rows = rows * (scales[0] if single else scales)
        layer = self._gaussian()
        if relaxed:
            y, sums = call(LOCAL_LINEAR, rows, (layer,), seeds[1], samples, single=single)
        else:
            y, sums = call(
                GATED_LINEAR, rows, (layer,), seeds[1], samples, (1, 1), 1.0, True, single=single
            )
        if current.recorded is not None:
            current.recorded.leave_kl(self, self._kl(sums))
        return self._shaped(y, x)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, threshold={self.threshold:g}, "
            f"sigma2={self._gaussian_prior.sigma2:g}"
        )
