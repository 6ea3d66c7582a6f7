"""A dense Bayesian layer under a scale-mixture prior (BNN-MGP-MF in the paper)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ...ops.dispatch import call
from ...ops.gated_linear import GATED_LINEAR
from ...ops.mixture_linear import MIXTURE_LINEAR
from ...reference import ScaleMixture
from ..layer import LAYERS
from ..linear_layer import GaussianWeights
from ..passes import current_pass


@LAYERS.register("mixture")
class MixtureLinear(GaussianWeights):
    """Gaussian weights and biases whose prior is a mixture of a wide and a narrow Gaussian.

        p(w) = pi N(0, variances[0]) + (1 - pi) N(0, variances[1])

    The prior's expectation has no closed form, so a pass that draws estimates the KL at the very weights
    that compute its outputs (``fastlbbnn.reference.mixture_linear``), and ``kl()`` at fresh ones. There is
    no pruning rule: the median modes are the sampled and the mean one.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``.
        pi: prior probability of the wide part.
        variances: of the wide and of the narrow part, in this order; by default the paper's 1 and e^-6.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        pi: float = 0.5,
        variances: tuple[float, float] = (1.0, math.exp(-6.0)),
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        if not 0.0 < pi < 1.0:
            raise ValueError(
                f"pi={pi}; expected a probability strictly between 0 and 1 (one Gaussian alone is "
                "GaussianLinear)"
            )
        wide, narrow = variances
        if not 0.0 < narrow < wide < math.inf:
            raise ValueError(
                f"variances={tuple(variances)}; expected two positive numbers, the larger one first"
            )
        self.prior = ScaleMixture(float(pi), float(wide), float(narrow))
        if self.prior.c > 60.0:
            raise ValueError(
                f"pi={pi}, variances={tuple(variances)}: at zero the narrow part outweighs the wide one "
                f"by exp({self.prior.c:.0f}), which float32 cannot hold; expected closer variances"
            )
        self.reset_parameters()

    def kl(self) -> Tensor:
        """The KL's estimate at one fresh draw, in nats."""
        nothing = self.kappa.new_empty(0, self.in_features)
        seed = current_pass().draw_seed(nothing.device)
        return call(MIXTURE_LINEAR, nothing, (self._gaussian(),), seed, 1, self.prior)[1]

    def settings(self) -> dict[str, Any]:
        return dict(self.prior._asdict())

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [..., out_features]``."""
        current = current_pass()
        rows = self._rows(x, current)
        self._refuse_sampled_kl(current)
        if not self._pass_mode(current).random:
            return F.linear(x, self.kappa, self.bias_kappa)
        seed = current.draw_seed(x.device)
        single, samples = current.samples is None, current.samples or 1
        layer = self._gaussian()
        if current.recorded is not None:
            y, kl = call(MIXTURE_LINEAR, rows, (layer,), seed, samples, self.prior, single=single)
            current.recorded.leave_kl(self, kl)
        else:
            # The same draws without the prior's term, which a prediction does not need.
            y, _ = call(GATED_LINEAR, rows, (layer,), seed, samples, (1, 1), 1.0, True, single=single)
        return self._shaped(y, x)

    def extra_repr(self) -> str:
        pi, wide, narrow = self.prior
        return f"{super().extra_repr()}, pi={pi:g}, variances=({wide:g}, {narrow:.4g})"
