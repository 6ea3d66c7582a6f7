"""Bayesian linear layers, drop-in for ``nn.Linear``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import ops, reference
from .._util.checks import check_block, check_choice, check_temperature
from .._util.dtypes import autocast
from ..ops.dispatch import call
from ..ops.gated_linear import GATED_LINEAR
from ..ops.local_linear import LOCAL_LINEAR
from ..reference.parameters import LayerParameters
from .inclusion import Inclusion, make_inclusion
from .layer import LAYERS
from .linear_layer import GaussianWeights
from .modes import WeightMode
from .passes import Pass, current_pass
from .priors import Prior, make_prior

Estimator = Literal["concrete", "local"]

#: Logits of indicators that are decided: sigmoid is 1 and 0 to float32, and no gate noise
#: (|logit(u)| < 17) turns them over.
_CERTAIN = 60.0


class BayesianLinear(GaussianWeights):
    """What layers of the fused kernels share: Gaussian weights, five sums and a prior of them."""

    mixes_precision = True
    #: Where the indicators come from; None for a layer without.
    inclusion: Inclusion | None
    prior: Prior
    #: Whether every draw has logits of its own.
    random_logits: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        block: tuple[int, int] = (1, 1),
        estimator: Estimator = "concrete",
        prior: Prior | str | None = None,
        temperature: float = 1.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        check_block(block)
        check_temperature(temperature)
        check_choice("estimator", estimator, ("concrete", "local"))
        if estimator == "local" and tuple(block) != (1, 1):
            raise ValueError(
                f"estimator='local' with block={tuple(block)}: the weights of a block share an "
                "indicator, so activations are dependent and one draw per activation would be wrong; "
                "use estimator='concrete'"
            )
        self.block = (int(block[0]), int(block[1]))
        self.estimator = estimator
        self.temperature = float(temperature)
        self.prior = make_prior(prior)
        self.prior.to(device=device)
        self.register_module("inclusion", None)
        self._blocks = 0

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.prior.reset_parameters()

    # --- the posterior -----------------------------------------------------------------------

    def logits(self, seed: Tensor | None = None) -> Tensor | None:
        """Indicator logits for one forward pass; None without indicators.

        Where they are random this is a draw, from ``seed`` or from a fresh one.
        """
        return None if self.inclusion is None else self.inclusion(seed)

    def decided_logits(self, threshold: float) -> Tensor | None:
        """Logits that make every indicator certain: in where alpha > threshold, else out."""
        if self.inclusion is None:
            return None
        chosen = self.inclusion.chosen(threshold)
        return torch.where(chosen, _CERTAIN, -_CERTAIN).to(self.kappa.dtype)

    def blocks(self) -> int:
        """G, the number of indicators."""
        return self._blocks

    def kept(self, threshold: float = 0.5) -> Tensor:
        if self.inclusion is None:
            return super().kept(threshold)
        return self._expanded(self.inclusion.chosen(threshold))

    def _expanded(self, grid: Tensor) -> Tensor:
        """A number for every weight: that of its block."""
        return reference.expand_blocks(grid, self.out_features, self.in_features, self.block)

    def mean_weight(self, mode: WeightMode = WeightMode.MEAN, threshold: float = 0.5) -> Tensor:
        """Posterior mean alpha * kappa, or with MEDIAN_MEAN kappa where alpha > threshold, else 0."""
        if self.inclusion is None:
            return self.kappa
        if mode is WeightMode.MEDIAN_MEAN:
            grid = self.inclusion.chosen(threshold).to(self.kappa.dtype)
        else:
            grid = self.inclusion.probabilities()
        return self._expanded(grid) * self.kappa

    def kl_sums(self) -> Tensor:
        """The five sums ``[5]`` of this layer, from its parameters alone; with random logits, of a draw."""
        return ops.kl_sums(*self._gaussian(self.logits()), block=self.block)

    def kl(self) -> Tensor:
        """KL divergence from the prior, a sum in nats.

        No state: only parameters enter, and with random logits one draw of them, so that the mean over
        calls is the expected KL (see ``inclusion.RandomLogits``).
        """
        value = self.prior.kl(self.kl_sums(), self.blocks())
        own = self.inclusion_kl()
        return value if own is None else value + own

    def inclusion_kl(self) -> Tensor | None:
        """What a family of indicators adds to the prior's KL; None for nothing."""
        return self.inclusion.kl() if self.random_logits and self.inclusion is not None else None

    def settings(self) -> dict[str, Any]:
        return {"block": self.block, "estimator": self.estimator, "temperature": self.temperature}

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        own = [p for p in self._parameters.values() if p is not None]
        return {
            "weights": own,
            **({} if self.inclusion is None else self.inclusion.step_groups()),
            "psi": list(self.prior.psi_parameters()),
            "sigma2": list(self.prior.sigma2_parameters()),
        }

    # --- forward -----------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [..., out_features]``."""
        current = current_pass()
        mode = self._pass_mode(current)
        x = autocast(x)
        rows = self._rows(x, current)
        if not mode.random:
            return self._mean_forward(x, self.mean_weight(mode, current.threshold))
        y, sums = self._sample(rows, mode, current)
        self._leave_sums(sums)
        if self.random_logits:
            self._leave_inclusion_kl(mode, current)
        return self._shaped(y, x)

    def _mean_forward(self, x: Tensor, weight: Tensor) -> Tensor:
        bias = self.bias_kappa
        if x.dtype is weight.dtype:
            return F.linear(x, weight, bias)
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    def _drawn_from(
        self, mode: WeightMode, current: Pass, seed: Tensor | None = None, once: bool = True
    ) -> LayerParameters:
        """The parameters of a draw in this mode.

        ``seed`` is that of the draw, which random logits take their noise from. Unless the kernel is
        called ``once`` in this pass, parameters are views, which no optimiser updates before the last of
        the calls has its gradient.
        """
        # Straight from the dictionaries: attribute access through nn.Module is slow enough to show in a
        # training step. What torch.nn.utils or DataParallel replaced is not in there.
        p = self._parameters
        inclusion: Inclusion | None = self._modules["inclusion"]  # type: ignore[assignment]
        if inclusion is None:
            omega = None
        elif mode is WeightMode.MEDIAN:
            omega = self._median_logits(current)
        else:
            omega = inclusion._parameters.get(inclusion.parameter)
            if omega is None or inclusion._forward_pre_hooks:
                omega = inclusion(seed)
        try:
            layer = LayerParameters(p["kappa"], p["rho"], omega, p["bias_kappa"], p["bias_rho"])  # type: ignore[arg-type]
        except KeyError:
            layer = self._gaussian(omega)
        if once:
            return layer
        kappa, rho, _, bias_kappa, bias_rho = (None if p is None else p.view_as(p) for p in layer)
        return LayerParameters(kappa, rho, omega, bias_kappa, bias_rho)  # type: ignore[arg-type]

    def _median_logits(self, current: Pass) -> Tensor | None:
        if current.structures is None:
            return self.decided_logits(current.threshold)
        if self not in current.structures:
            current.structures[self] = self.decided_logits(current.threshold)
        return current.structures[self]

    def _leave_inclusion_kl(self, mode: WeightMode, current: Pass) -> None:
        """Leave ``inclusion_kl`` for the objective, after a pass that drew logits."""
        if mode is not WeightMode.MEDIAN and current.recorded is not None:
            own = self.inclusion_kl()
            if own is not None:
                current.recorded.leave_kl(self, own)

    def _sample(self, x: Tensor, mode: WeightMode, current: Pass) -> tuple[Tensor, Tensor]:
        """Outputs of rows, [M, N] for one draw and else [samples, M, N], and the five sums."""
        samples = current.samples
        if samples is None or not self.random_logits or mode is WeightMode.MEDIAN:
            seed = current.draw_seed(x.device)
            return self._draw(x, mode, current, seed, samples or 1, single=samples is None)
        # A kernel's draws share their logits: here each has its own.
        seeds = current.draw_seed(x.device, (samples,))
        once = samples == 1
        draws = [
            self._draw(x if x.dim() == 2 else x[s], mode, current, seed, 1, single=True, once=once)
            for s, seed in enumerate(seeds)
        ]
        outputs, sums = zip(*draws)
        return torch.stack(outputs), torch.stack(sums).mean(0)

    def _draw(
        self, x: Tensor, mode: WeightMode, current: Pass, seed: Tensor, samples: int, single: bool,
        once: bool = True,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draws that share their logits, by one call of the kernel."""
        layer = self._drawn_from(mode, current, seed, once)
        if self._draws_activations(mode, current):
            if current.kl == "sampled":
                raise ValueError(
                    "kl='sampled' needs a draw of the weights, and estimator='local' makes none; use "
                    "kl='closed'"
                )
            return call(LOCAL_LINEAR, x, (layer,), seed, samples, single=single)
        hard = mode is not WeightMode.RELAXED
        y, sums = call(
            GATED_LINEAR, x, (layer,), seed, samples, self.block, self.temperature, hard, single=single
        )
        if current.kl == "sampled":
            sums = self._sampled_sums(layer, seed, samples, hard)
        return y, sums

    def _draws_activations(self, mode: WeightMode, current: Pass) -> bool:
        """Whether a pass is one of local reparametrisation.

        The objective takes it for the median model, too: with indicators that are 0 or 1 its moments are
        those of the weights that are kept. In a prediction a draw is one network for all rows.
        """
        if self.estimator != "local":
            return False
        return mode is WeightMode.RELAXED or (mode is WeightMode.MEDIAN and current.recorded is not None)

    def _sampled_sums(self, layer: LayerParameters, seed: Tensor, samples: int, hard: bool) -> Tensor:
        draws = [
            reference.sampled_kl_sums(
                *layer, seed=seed, sample=s, block=self.block, temperature=self.temperature, hard=hard
            )
            for s in range(samples)
        ]
        return torch.stack(draws).mean(0)

    def extra_repr(self) -> str:
        parts = [super().extra_repr()]
        if self.block != (1, 1):
            parts.append(f"block={self.block}")
        parts.append(f"estimator={self.estimator!r}")
        if self.inclusion is not None and self.estimator == "concrete":
            parts.append(f"temperature={self.temperature:g}")
        return ", ".join(parts)


@LAYERS.register("lbbnn")
class LBBNNLinear(BayesianLinear):
    """A linear layer whose weights have Gaussian posteriors and binary inclusion indicators.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``.
        block: weights ``(rows, columns)`` that share one indicator. ``(1, 1)`` is the paper's model;
            larger blocks select block-sparse models.
        estimator: "local" samples activations, with the exact moments of indicators and weights (``(1, 1)``
            blocks only); "concrete" samples weights with relaxed gates (the paper's Algorithm 1). None:
            "local" where blocks are ``(1, 1)``. Relaxed gates are biased: at temperature 0.5 and an
            inclusion probability of 0.1 their mean is 1.27 times the indicator's, and what training climbs
            is not a bound on the evidence. "local" has gradients with two to four times less noise.
        prior: a ``fastlbbnn.nn.priors.Prior``, copied, or the name of a kind ("fixed", "empirical-bayes",
            "conjugate", one of your own); None: ``FixedPrior(psi=0.1, sigma2=1)``.
        temperature: of the relaxed gates. Small values are closer to the binary model and have noisier
            gradients: the authors' scripts use 0.001, where hardly any draw has a gradient at all.
        inclusion: where the indicators' logits come from: "mean-field" (independent), "mvn" (jointly
            normal, one covariance over the inputs), "low-rank" (the same, of low rank plus a diagonal), or
            a function of ``(rows, cols, device=, dtype=)`` that makes an ``inclusion.Inclusion`` for the grid
            of blocks. See ``fastlbbnn.nn.inclusion``.
        inclusion_options: further arguments of the family, such as ``{"rank": 2}``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        block: tuple[int, int] = (1, 1),
        estimator: Estimator | None = None,
        prior: Prior | str | None = None,
        temperature: float = 0.5,
        inclusion: str | Callable[..., Inclusion] = "mean-field",
        inclusion_options: Mapping[str, Any] | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_block(block)
        if estimator is None:
            estimator = "local" if tuple(block) == (1, 1) else "concrete"
        super().__init__(
            in_features, out_features, bias, block=block, estimator=estimator, prior=prior,
            temperature=temperature, device=device, dtype=dtype,
        )
        self._reset_weights()
        grid = reference.grid_shape(out_features, in_features, self.block)
        self._blocks = math.prod(grid)
        self.inclusion = make_inclusion(
            inclusion, *grid, **dict(inclusion_options or {}), device=device, dtype=dtype
        )
        self.random_logits = self.inclusion.random

    inclusion: Inclusion

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.inclusion.reset_parameters()

    @property
    def omega(self) -> Tensor:
        """Indicator logits, on the grid of blocks; a draw where they are random."""
        return self.inclusion()

    def inclusion_probabilities(self) -> Tensor:
        """Marginal posterior inclusion probabilities alpha, on the grid of blocks."""
        return self.inclusion.probabilities()

    @torch.no_grad()
    def density(
        self, mode: WeightMode | str = WeightMode.MEDIAN_MEAN, threshold: float = 0.5
    ) -> float:
        """Share of the weights that a mode uses.

        The median modes keep what has alpha > threshold, a drawn network its expected share, the mean
        inclusion probability; the posterior mean keeps all.
        """
        mode = WeightMode(mode)
        if mode is WeightMode.MEAN:
            return 1.0
        if mode in (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN):
            return self._mean_over_weights(self.inclusion.chosen(threshold).to(torch.float32))
        return self.mean_inclusion()

    @torch.no_grad()
    def mean_inclusion(self) -> float:
        """Mean inclusion probability of the weights."""
        return self._mean_over_weights(self.inclusion.probabilities())

    def _mean_over_weights(self, grid: Tensor) -> float:
        return self._expanded(grid).mean().item()


@LAYERS.register("gaussian")
class GaussianLinear(BayesianLinear):
    """A dense Bayesian linear layer: Gaussian weights, no indicators (Bayes by backprop).

    ``estimator`` "concrete" samples weights, "local" samples activations. The prior's
    ``sigma2`` is all of it that matters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        estimator: Estimator = "concrete",
        prior: Prior | str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, estimator=estimator, prior=prior, device=device,
            dtype=dtype,
        )
        self._reset_weights()
