"""What the objective, the densities and the parameter groups ask of a Bayesian layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int
from .._util.dtypes import may_mix
from .._util.memory import staggered_empty
from .modes import Pass, WeightMode

#: The kinds of parameters that have a step size of their own (``fastlbbnn.param_groups``).
KINDS = ("weights", "inclusion", "covariance", "psi", "sigma2", "scales")


class BayesianLayer(nn.Module):
    """A layer with a posterior over its weights, drop-in for ``nn.Linear``.

    ``forward`` returns a tensor like ``nn.Linear``'s. In ``train()`` weights are sampled, in ``eval()``
    they are the posterior mean; ``fastlbbnn.weights`` overrides both. A pass that samples may leave its
    KL for the objective, as five sums (``recording.leave_sums``) or as a number (``recording.leave_kl``);
    of a layer that left nothing the objective asks ``kl()``.

    Every layer has its weights' means in a parameter ``kappa`` [out_features, in_features].
    """

    in_features: int
    out_features: int
    kappa: nn.Parameter
    #: Whether a layer of float32 takes inputs in half precision; outputs then have their dtype.
    mixes_precision = False

    def kl(self) -> Tensor:
        """KL divergence from the prior, a sum in nats; where it needs a draw, one fresh draw's."""
        raise NotImplementedError

    def weight_count(self) -> int:
        """Weights of the layer, biases apart."""
        return self.kappa.numel()

    def density(
        self, mode: WeightMode | str = WeightMode.MEDIAN_MEAN, threshold: float = 0.5
    ) -> float:
        """Share of the layer's weights that a prediction mode uses."""
        WeightMode(mode)
        return 1.0

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        """The layer's parameters by kind, which is one of ``KINDS``."""
        return {"weights": list(self.parameters())}

    # --- for forward passes --------------------------------------------------------------------

    def _pass_mode(self, current: Pass) -> WeightMode:
        """The mode that stands in this pass, or what ``train()`` and ``eval()`` imply."""
        if current.mode is not None:
            return current.mode
        return WeightMode.RELAXED if self.training else WeightMode.MEAN

    def _check_input(self, x: Tensor, current: Pass) -> None:
        kappa = self._parameters["kappa"]
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"x is {list(x.shape)}; expected a last axis of {self.in_features} for {self}"
            )
        if x.dtype is not kappa.dtype and not (
            self.mixes_precision and may_mix(x.dtype, kappa.dtype)
        ):
            raise TypeError(f"x is {x.dtype} and the layer {kappa.dtype}; expected one dtype")
        if x.device != kappa.device:
            raise ValueError(f"x is on {x.device} and the layer on {kappa.device}; expected one device")
        if current.samples is not None and (x.dim() < 2 or x.shape[0] != current.samples):
            raise ValueError(
                f"x is {list(x.shape)}; within weights(samples={current.samples}) its first axis is the "
                "sample axis (add it with fastlbbnn.expand_samples)"
            )

    def _refuse_sampled_kl(self, current: Pass) -> None:
        if current.kl == "sampled":
            raise ValueError(
                f"kl='sampled' is an estimate of latent binary and Gaussian layers; {type(self).__name__} "
                "has its own KL: use kl='closed'"
            )

    def _rows(self, x: Tensor, current: Pass) -> Tensor:
        """``x`` as [M, K], or [samples, M, K] where each sample has its own."""
        if current.samples is None:
            return x if x.dim() == 2 else x.reshape(-1, self.in_features)
        if x.stride(0) == 0:
            return x[0].reshape(-1, self.in_features)
        return x if x.dim() == 3 else x.reshape(current.samples, -1, self.in_features)


def bayesian_layers(model: nn.Module) -> list[BayesianLayer]:
    """The Bayesian layers of a model, each once, in order of definition."""
    # As module.modules(), without a generator per level: every training step asks.
    found: dict[BayesianLayer, None] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, BayesianLayer):
            found[module] = None
        elif module is not None:
            waiting += reversed(module._modules.values())
    return list(found)


class GaussianWeights(BayesianLayer):
    """Independent Gaussian weights and biases: means ``kappa`` and standard deviations softplus(rho)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, device=None, dtype=None
    ) -> None:
        super().__init__()
        self.in_features = check_positive_int("in_features", in_features)
        self.out_features = check_positive_int("out_features", out_features)
        kwargs = {"device": device, "dtype": dtype}
        shape = (out_features, in_features)
        self.kappa = nn.Parameter(staggered_empty(shape, 0, **kwargs))
        self.rho = nn.Parameter(staggered_empty(shape, 1, **kwargs))
        for name in ("bias_kappa", "bias_rho"):
            value = nn.Parameter(torch.empty(out_features, **kwargs)) if bias else None
            self.register_parameter(name, value)

    def reset_parameters(self) -> None:
        """Means as in ``nn.Linear``, scales a tenth of their spread."""
        bound = 1.0 / math.sqrt(self.in_features)
        rho = math.log(math.expm1(0.1 * bound))
        with torch.no_grad():
            self.kappa.uniform_(-bound, bound)
            self.rho.uniform_(rho - 0.5, rho + 0.5)
            if self.bias_kappa is not None:
                self.bias_kappa.uniform_(-bound, bound)
                self.bias_rho.uniform_(rho - 0.5, rho + 0.5)

    def _gaussian(self) -> tuple[Tensor | None, ...]:
        """kappa, rho, bias_kappa, bias_rho, as fast as they can be had."""
        p = self._parameters
        return p["kappa"], p["rho"], p["bias_kappa"], p["bias_rho"]

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias_kappa is not None}"
