"""Concrete dropout, the paper's BNN-GP-CMF: learned rates at which inputs, outputs or weights drop out."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._util.checks import check_choice, check_temperature
from ..._util.memory import staggered_empty
from ...ops.dispatch import call
from ...ops.gated_linear import GATED_LINEAR
from ...ops.noise import logistics, normals
from ...reference import Stream
from ...reference.local_linear import MIN_VARIANCE
from ...reference.parameters import LayerParameters
from ...reference.sums import negative_entropy
from ..layer import LAYERS
from ..linear_layer import LinearLayer
from ..modes import WeightMode
from ..passes import current_pass

Drops = Literal["inputs", "outputs", "weights"]

#: Untransformed scale of weights without a spread of their own: softplus(-40) = 4e-18 disappears in any sum.
_NO_SPREAD = -40.0


@LAYERS.register("concrete-dropout")
class ConcreteDropoutLinear(LinearLayer):
    """Dropout as a posterior (Gal, Hron and Kendall, 2017): one learned rate ``p`` per layer.

    An input is kept with probability alpha = 1 - p, with all its weights M = kappa/alpha, so that
    kappa is the posterior mean. A point mass at M has no density, so q is a mixture of two Gaussians of
    a width s that is small and fixed, and what depends on s alone is left out of its divergence from
    N(0, sigma2). For K inputs, kappa [N, K] and biases b:

        KL = (|kappa|^2/alpha + |b|^2)/(2 sigma2) + K (alpha log alpha + (1-alpha) log(1-alpha)).

    With ``drops="outputs"`` it is the N outputs that are kept or not, with all their weights and their bias:

        KL = (|kappa|^2 + |b|^2)/(2 alpha sigma2) + N (alpha log alpha + (1-alpha) log(1-alpha)).

    With ``drops="weights"`` every weight has a mask of its own, with the layer's one rate:

        KL = (|kappa|^2/alpha + |b|^2)/(2 sigma2) + N K (alpha log alpha + (1-alpha) log(1-alpha)).

    A training pass relaxes the masks, one per observation: z = sigmoid((omega - logit u)/temperature)
    with alpha = sigmoid(omega). Masks of weights would be N K numbers per observation; there activations are
    drawn, one per observation, as normals with the moments that the masks give them:

        mean = x kappa' + b,   var = (1-alpha)/alpha x^2 (kappa^2)'.

    A sampled pass draws networks: one binary mask per sample, the same for all observations. The mean pass
    has no noise. There is no pruning rule, so the median modes are the sampled and the mean one.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``.
        dropout: the rate p to start from.
        drops: what a mask drops. "inputs" is Gal's; "outputs" is what the paper's authors computed, where no
            input of the network is ever dropped, and where a last layer drops logits; "weights" leaves
            all units in a sparse draw.
        temperature: of the relaxed masks; without effect on masks of weights, which are not relaxed.
        sigma2: prior variance of weights and biases.
        scaled_start: start from sqrt(1 - p) times ``nn.Linear``'s weights. A mask divides what it keeps by
            1 - p, and so the expected squares of the outputs; at rates near 1 training starts in that noise.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dropout: float = 0.1,
        drops: Drops = "inputs",
        temperature: float = 0.1,
        sigma2: float = 1.0,
        scaled_start: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features)
        check_temperature(temperature)
        if not 0.0 < dropout < 1.0:
            raise ValueError(f"dropout={dropout}; expected a rate strictly between 0 and 1")
        check_choice("drops", drops, ("inputs", "outputs", "weights"))
        if not 0.0 < sigma2 < math.inf:
            raise ValueError(f"sigma2={sigma2}; expected a positive variance")
        self.dropout, self.temperature, self.sigma2 = float(dropout), float(temperature), float(sigma2)
        self.drops, self.scaled_start = drops, bool(scaled_start)
        kwargs = {"device": device, "dtype": dtype}
        self.kappa = nn.Parameter(staggered_empty((out_features, in_features), 0, **kwargs))
        bias_kappa = nn.Parameter(torch.empty(out_features, **kwargs)) if bias else None
        self.register_parameter("bias_kappa", bias_kappa)
        #: Logit of the probability that an input (or output, or weight) is kept.
        self.omega = nn.Parameter(torch.empty((), **kwargs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Means as in ``nn.Linear`` (scaled where that was asked for), the rate that was asked for."""
        bound = 1.0 / math.sqrt(self.in_features)
        scale = math.sqrt(1.0 - self.dropout) if self.scaled_start else 1.0
        with torch.no_grad():
            self.kappa.uniform_(-scale * bound, scale * bound)
            if self.bias_kappa is not None:
                self.bias_kappa.uniform_(-bound, bound)
            self.omega.fill_(math.log1p(-self.dropout) - math.log(self.dropout))

    def dropout_rate(self) -> float:
        """p, the posterior probability that an input (or output, or weight) is dropped."""
        return torch.sigmoid(-self.omega.detach()).item()

    def kl(self) -> Tensor:
        alpha, square = torch.sigmoid(self.omega), self.kappa.square().sum()
        of_bias = 0.0 if self.bias_kappa is None else self.bias_kappa.square().sum()
        if self.drops == "outputs":
            square, masked = (square + of_bias) / alpha, self.out_features
        else:
            square = square / alpha + of_bias
            masked = self.in_features if self.drops == "inputs" else self.kappa.numel()
        return square / (2.0 * self.sigma2) + masked * negative_entropy(self.omega)

    def density(
        self, mode: WeightMode | str = WeightMode.MEDIAN_MEAN, threshold: float = 0.5
    ) -> float:
        """Share of the weights that a mode uses: drawn networks keep 1 - p, means keep all."""
        return 1.0 - self.dropout_rate() if WeightMode(mode).random else 1.0

    def settings(self) -> dict[str, Any]:
        return {"drops": self.drops, "temperature": self.temperature, "sigma2": self.sigma2}

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        own = [p for p in self._parameters.values() if p is not None]
        return {"weights": [p for p in own if p is not self.omega], "inclusion": [self.omega]}

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [..., out_features]``."""
        current = current_pass()
        mode = self._pass_mode(current)
        rows, single, samples = self._rows(x, current), current.samples is None, current.samples or 1
        self._refuse_sampled_kl(current)
        if not mode.random:
            return F.linear(x, self.kappa, self.bias_kappa)
        if current.recorded is not None:
            current.recorded.leave_kl(self, self.kl())
        seed = current.draw_seed(x.device)
        relaxed = mode is WeightMode.RELAXED
        if self.drops != "weights":
            y = self._with_masked_units(rows, seed, samples, relaxed, single)
        elif relaxed:
            y = self._with_drawn_activations(rows, seed, samples, single)
        else:
            y = self._with_masked_weights(rows, seed, samples, single)
        return self._shaped(y, x)

    def _with_masked_units(
        self, rows: Tensor, seed: Tensor, samples: int, relaxed: bool, single: bool
    ) -> Tensor:
        masked = self.in_features if self.drops == "inputs" else self.out_features
        noise = logistics(seed, samples, rows.shape[-2] if relaxed else 1, masked, rows)
        if relaxed:
            kept = torch.sigmoid((self.omega - noise) / self.temperature)
        else:
            kept = (noise < self.omega).to(rows.dtype)
        scaled = kept / torch.sigmoid(self.omega)
        if single:
            scaled = scaled[0]
        if self.drops == "inputs":
            return F.linear(rows * scaled, self.kappa, self.bias_kappa)
        return F.linear(rows, self.kappa, self.bias_kappa) * scaled

    def _with_drawn_activations(self, rows: Tensor, seed: Tensor, samples: int, single: bool) -> Tensor:
        mean = F.linear(rows, self.kappa, self.bias_kappa)
        # (1-alpha)/alpha = exp(-omega)
        variance = F.linear(rows.square(), self.kappa.square()) * torch.exp(-self.omega)
        noise = normals(seed, Stream.ACTIVATION, samples, rows.shape[-2], self.out_features, rows)
        return mean + variance.clamp_min(MIN_VARIANCE).sqrt() * (noise[0] if single else noise)

    def _with_masked_weights(self, rows: Tensor, seed: Tensor, samples: int, single: bool) -> Tensor:
        """``ops.gated_linear``'s weights: the gates are the masks, all with one logit."""
        kept = self.kappa / torch.sigmoid(self.omega)
        logits = self.omega.expand_as(kept).contiguous()
        layer = LayerParameters(kept, torch.full_like(kept, _NO_SPREAD), logits)
        y, _ = call(GATED_LINEAR, rows, (layer,), seed, samples, (1, 1), 1.0, True, single=single)
        return y if self.bias_kappa is None else y + self.bias_kappa

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias={self.bias_kappa is not None}, "
            f"drops={self.drops!r}, "
            + ("" if self.drops == "weights" else f"temperature={self.temperature:g}, ")
            + f"sigma2={self.sigma2:g}"
        )
