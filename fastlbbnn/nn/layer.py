"""What the objective, the densities and the parameter groups ask of a Bayesian layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._util.registry import Registry
from .modes import WeightMode
from .passes import HasKL, Pass, bayesian_layers, current_pass
from .state import packed, unpacked

#: The kinds of parameters that have a step size of their own (``fastlbbnn.param_groups``).
KINDS = ("weights", "inclusion", "covariance", "psi", "sigma2", "scales")


class BayesianLayer(HasKL):
    """A layer with a posterior over its weights; nothing here knows their shape.

    In ``train()`` weights are sampled, in ``eval()`` they are the posterior mean; ``fastlbbnn.weights``
    overrides both. A pass that samples may leave its KL for the objective, as five sums (``_leave_sums``)
    or as a number (``_leave_kl``); the objective asks ``kl()`` of a layer that left nothing.

    Every layer has its weights' means in ``kappa``.
    """

    kappa: Tensor

    def weight_count(self) -> int:
        """Weights of the layer, biases apart."""
        return self.kappa.numel()

    def density(
        self, mode: WeightMode | str = WeightMode.MEDIAN_MEAN, threshold: float = 0.5
    ) -> float:
        """Share of the layer's weights that a prediction mode uses."""
        WeightMode(mode)
        return 1.0

    def kept(self, threshold: float = 0.5) -> Tensor:
        """Which weights the median modes use, bool, of kappa's shape."""
        return torch.ones_like(self.kappa, dtype=torch.bool)

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        """The layer's parameters by kind, which is one of ``KINDS``."""
        return {"weights": list(self.parameters())}

    def mean_weight(self, mode: WeightMode = WeightMode.MEAN, threshold: float = 0.5) -> Tensor:
        """The weights of a pass without noise, MEAN or MEDIAN_MEAN."""
        return self.kappa

    def settings(self) -> dict[str, Any]:
        """What the layer is apart from its parameters: a ``state_dict`` holds it, and loading one compares it.

        Numbers, strings and pairs of them, by the names of the constructor.
        """
        return {}

    # --- for other modules that look for the weights of a linear map ------------------------------

    @property
    def weight(self) -> Tensor:
        """The posterior mean, in passes that use it; where weights are drawn there is no such tensor."""
        current = current_pass()
        mode = self._pass_mode(current)
        if mode.random:
            raise AttributeError(_no_single("weight", self))
        return self.mean_weight(mode, current.threshold)

    @property
    def bias(self) -> Tensor | None:
        """The biases' posterior mean, as ``weight`` is that of the weights."""
        if self._pass_mode(current_pass()).random:
            raise AttributeError(_no_single("bias", self))
        return getattr(self, "bias_kappa", None)

    def __getattr__(self, name: str) -> Any:
        if name == "weight" or name == "bias":
            raise AttributeError(_no_single(name, self))
        return super().__getattr__(name)

    # --- state -----------------------------------------------------------------------------------

    def get_extra_state(self) -> Tensor:
        return packed(self.settings())

    def set_extra_state(self, state: object) -> None:
        saved, own = unpacked(state, self), self.settings()
        for name in sorted(saved.keys() | own.keys()):
            given, here = saved.get(name), own.get(name)
            if given != here and not (isinstance(here, tuple) and list(here) == given):
                raise ValueError(
                    f"this state_dict is of a {type(self).__name__} with {name}={given!r}, and it is loaded "
                    f"into one with {name}={here!r}; build the layer with {name}={given!r}, or, to take the "
                    "parameters alone, leave out '_extra_state' and load with strict=False"
                )

    # --- for forward passes ------------------------------------------------------------------------

    def _pass_mode(self, current: Pass) -> WeightMode:
        """The mode that stands in this pass, or what ``train()`` and ``eval()`` imply."""
        if current.mode is not None:
            return current.mode
        return WeightMode.RELAXED if self.training else WeightMode.MEAN

    def _leave_sums(self, sums: Tensor) -> None:
        """Leave the five sums of this pass for the objective, if it asks; for layers with a ``prior``."""
        recorded = current_pass().recorded
        if recorded is not None:
            recorded.leave_sums((self,), sums)  # type: ignore[arg-type]

    def _leave_kl(self, kl: Tensor) -> None:
        """Leave the KL of this pass in nats for the objective, if it asks for it."""
        recorded = current_pass().recorded
        if recorded is not None:
            recorded.leave_kl(self, kl)

    def _refuse_sampled_kl(self, current: Pass) -> None:
        if current.kl == "sampled":
            raise ValueError(
                f"kl='sampled' is an estimate of latent binary and Gaussian layers; {type(self).__name__} "
                "has its own KL: use kl='closed'"
            )


def _no_single(name: str, layer: BayesianLayer) -> str:
    return (
        f"{type(layer).__name__} has no {name} in a pass that draws its weights (it is the posterior mean in "
        "eval()): a module that reads it would go on with another model. Call the layer. "
        "nn.TransformerEncoderLayer does so after torch.backends.mha.set_fastpath_enabled(False); "
        "nn.MultiheadAttention never does: write the attention with F.scaled_dot_product_attention, or keep "
        "its projections as they are"
    )


#: Kinds of layers, by name; a user's own is registered in the same way.
LAYERS: Registry[type[BayesianLayer]] = Registry("layer")

__all__ = ["KINDS", "LAYERS", "BayesianLayer", "bayesian_layers"]
