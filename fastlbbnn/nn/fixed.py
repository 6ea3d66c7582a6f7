"""Layers of a fixed structure: only the kept weights are stored, and a step costs what they cost.

    small = FixedMLP.of(model)                    # the median model of a trained network, to train on
    for x, y in batches:
        optimizer.backward_step(elbo(small, x, y, n_data=n).loss)
    small.write_to(model)                         # back into the network that it was taken from
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from .._util.checks import check_choice
from .._util.dtypes import autocast
from ..ops.dispatch import call, choose
from ..ops.fixed_mlp import FIXED_MLP, Support
from ..reference.fixed_mlp import ESTIMATORS
from ..reference.parameters import LayerParameters
from .linear import BayesianLinear
from .linear_layer import LinearLayer
from .mlp import MLP, _global_hooks
from .modes import WeightMode
from .passes import Pass, current_pass
from .priors import FixedPrior, Prior

#: Weights of a dense layer, and what a layer of a fixed structure keeps of them.
_OF_WEIGHTS = ("kappa", "rho")
_OF_BIASES = ("bias_kappa", "bias_rho")


class FixedLinear(LinearLayer):
    """A linear layer with Gaussian weights where ``support`` says, and exact zeros elsewhere.

    kappa and rho are vectors, [kept weights], by rows. In ``train()`` a pass is computed as ``estimator``
    says, in ``eval()`` at the means; ``fastlbbnn.weights`` overrides both: "sampled" and "median" draw the
    kept weights (the objective's passes in "median" are those of training), "mean" and "median-mean" take
    their means.

    Args:
        support: where the kept weights stand; ``Support.of_mask`` makes one.
        bias: whether there are biases.
        estimator: "local" draws activations from their exact moments, "sampled" draws weights, "means" draws
            nothing and trains the means (the scales by their KL alone).
        prior: a ``fastlbbnn.nn.priors.Prior``, copied; None: ``FixedPrior(psi=0.1, sigma2=1)``.
        blocks: indicators of the whole layer, G of the KL; None: one per weight.
        included: indicators that are kept, A of the KL; None: one per kept weight. The structure is given,
            so both add constants.
    """

    rho: Tensor
    bias_kappa: Tensor | None
    bias_rho: Tensor | None
    mixes_precision = True

    def __init__(
        self,
        support: Support,
        bias: bool = True,
        *,
        estimator: str = "local",
        prior: Prior | None = None,
        blocks: int | None = None,
        included: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_choice("estimator", estimator, ESTIMATORS)
        super().__init__(support.cols, support.rows)
        self.estimator = estimator
        self.prior = copy.deepcopy(prior) if prior is not None else FixedPrior()
        self._blocks = support.rows * support.cols if blocks is None else blocks
        self._included = support.weights if included is None else included
        for name, t in zip(Support._fields, support):
            # By columns it is the same again.
            self.register_buffer(name, t.to(device).contiguous(), persistent=name in ("row_offsets", "columns"))
        kwargs = {"device": device, "dtype": dtype}
        for name in _OF_WEIGHTS:
            setattr(self, name, nn.Parameter(torch.empty(support.weights, **kwargs)))
        for name in _OF_BIASES:
            self.register_parameter(name, nn.Parameter(torch.empty(support.rows, **kwargs)) if bias else None)
        with torch.no_grad():
            for p in (self.kappa, self.bias_kappa):
                if p is not None:
                    p.zero_()
            for p in (self.rho, self.bias_rho):
                if p is not None:
                    p.fill_(-3.0)

    @staticmethod
    def of(layer: BayesianLinear, kept: Tensor | None = None, *, estimator: str | None = None) -> FixedLinear:
        """The kept weights of a layer, with their posterior; by default those of its median model.

        The prior is the layer's own, the same object: what learns or steers it goes on.
        """
        kept = layer.kept() if kept is None else kept
        certain = layer.inclusion is not None
        included = int(kept[:: layer.block[0], :: layer.block[1]].sum()) if certain else 0
        made = FixedLinear(
            Support.of_mask(kept), layer.bias_kappa is not None, blocks=layer.blocks(), included=included,
            estimator=_estimator_of(layer) if estimator is None else estimator, device=layer.kappa.device,
            dtype=layer.kappa.dtype,
        )  # fmt: skip
        made.prior = layer.prior
        made.train(layer.training)
        made.read_from(layer)
        return made

    @property
    def support(self) -> Support:
        b = self._buffers
        return Support(b["row_offsets"], b["columns"], b["col_offsets"], b["rows_of"], b["positions"])  # type: ignore[arg-type]

    # --- exchange with dense layers --------------------------------------------------------------

    @torch.no_grad()
    def read_from(self, layer: BayesianLinear) -> None:
        """Take the posterior of the kept weights from a layer of the same size."""
        at = self.support.by_rows()
        for name in _OF_WEIGHTS:
            getattr(self, name).copy_(getattr(layer, name)[at])
        for name in _OF_BIASES:
            if getattr(self, name) is not None:
                getattr(self, name).copy_(getattr(layer, name))

    @torch.no_grad()
    def write_to(self, layer: BayesianLinear) -> None:
        """Put the posterior of the kept weights into a layer of the same size; all others stay as they are."""
        if (layer.in_features, layer.out_features) != (self.in_features, self.out_features):
            raise ValueError(f"{layer} has another size than {self}; expected the layer that it was taken from")
        at = self.support.by_rows()
        for name in _OF_WEIGHTS:
            getattr(layer, name)[at] = getattr(self, name)
        for name in _OF_BIASES:
            if getattr(self, name) is not None:
                getattr(layer, name).copy_(getattr(self, name))

    # --- the posterior -----------------------------------------------------------------------------

    def blocks(self) -> int:
        """G, the number of indicators of the whole layer."""
        return self._blocks

    def weight_count(self) -> int:
        return self.in_features * self.out_features

    def density(self, mode: WeightMode | str = WeightMode.MEDIAN_MEAN, threshold: float = 0.5) -> float:
        WeightMode(mode)
        return self.kappa.numel() / self.weight_count()

    def mean_weight(self, mode: WeightMode = WeightMode.MEAN, threshold: float = 0.5) -> Tensor:
        return self.support.dense(self.kappa)

    def kl_sums(self) -> Tensor:
        """The five sums ``[5]`` of this layer, from its parameters alone."""
        sums = ops.kl_sums(self.kappa.unsqueeze(0), self.rho.unsqueeze(0), None)
        if self.bias_kappa is not None and self.bias_rho is not None:
            sums = sums + ops.kl_sums(self.bias_kappa.unsqueeze(0), self.bias_rho.unsqueeze(0), None)
        return sums + sums.new_tensor((0.0, float(self._included), 0.0, 0.0, 0.0))

    def kl(self) -> Tensor:
        """KL divergence from the prior, a sum in nats."""
        return self.prior.kl(self.kl_sums(), self.blocks())

    def settings(self) -> dict[str, Any]:
        return {"estimator": self.estimator, "blocks": self._blocks, "included": self._included}

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        own = [p for p in self._parameters.values() if p is not None]
        return {
            "weights": own, "psi": list(self.prior.psi_parameters()),
            "sigma2": list(self.prior.sigma2_parameters()),
        }

    # --- forward -------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [..., out_features]``."""
        current = current_pass()
        estimator = self._estimator(current)
        x = autocast(x)
        y, sums = _pass((self,), self._rows(x, current), estimator, current)
        self._leave_sums(sums.view(5))
        return self._shaped(y, x)

    def _estimator(self, current: Pass) -> str:
        """How a pass is computed."""
        mode = self._pass_mode(current)
        if not mode.random:
            return "means"
        self._refuse_sampled_kl(current)
        if mode is WeightMode.RELAXED or (mode is WeightMode.MEDIAN and current.recorded is not None):
            return self.estimator
        return "sampled"

    def _kept_parameters(self) -> LayerParameters:
        p = self._parameters
        try:
            return LayerParameters(p["kappa"], p["rho"], None, p["bias_kappa"], p["bias_rho"])  # type: ignore[arg-type]
        except KeyError:
            return LayerParameters(self.kappa, self.rho, None, self.bias_kappa, self.bias_rho)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if f"{prefix}columns" in state_dict:
            rows, columns = self.support.by_rows()
            of = Support.of_places(rows, columns, self.out_features, self.in_features)
            for name, t in zip(Support._fields, of):
                self._buffers[name] = t.contiguous()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias={self.bias_kappa is not None}, "
            f"{self.kappa.numel()} weights ({self.density():.2%}), estimator={self.estimator!r}"
        )


def _estimator_of(layer: BayesianLinear) -> str:
    """What a dense layer's training draws, of kept weights."""
    return "local" if layer.estimator == "local" else "sampled"


def _pass(
    layers: Sequence[FixedLinear], rows: Tensor, estimator: str, current: Pass
) -> tuple[Tensor, Tensor]:
    """Outputs and the five sums of every layer, by one call."""
    # Means draw nothing; a seed that is not used leaves the generator alone.
    if estimator == "means":
        seeds = _no_seeds(len(layers), rows.device)
    else:
        seeds = current.draw_seed(rows.device, (len(layers),))
    return call(
        FIXED_MLP, rows, [layer._kept_parameters() for layer in layers], [layer.support for layer in layers],
        seeds, current.samples or 1, estimator, [layer._included for layer in layers],
        single=current.samples is None,
    )


def _no_seeds(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.int64, device=device)


class FixedMLP(MLP):
    """``FixedLinear`` layers with ReLU between them; where it can, a pass is one operator's call.

    ``FixedMLP.of`` takes the kept weights of a trained network; ``SparseModel.trainable`` gives those of a
    selected one.
    """

    def __init__(self, *layers: FixedLinear) -> None:
        if not layers:
            raise ValueError("no layers; expected at least one FixedLinear")
        modules: list[nn.Module] = []
        for i, layer in enumerate(layers):
            if not isinstance(layer, FixedLinear):
                raise TypeError(f"layer {i} is a {type(layer).__name__}; expected a FixedLinear")
            if i and layers[i - 1].out_features != layer.in_features:
                raise ValueError(
                    f"layer {i} takes {layer.in_features} inputs and layer {i - 1} has "
                    f"{layers[i - 1].out_features} outputs; expected the same number"
                )
            modules += [layer, nn.ReLU()]
        nn.Sequential.__init__(self, *modules[:-1])

    @staticmethod
    def of(
        model: nn.Module, threshold: float = 0.5, *, kept: Sequence[Tensor] | None = None,
        estimator: str | None = None,
    ) -> FixedMLP:
        """The median model of a network, to train on: its weights with alpha > ``threshold``.

        Args:
            model: an MLP, or an nn.Sequential, of ``BayesianLinear`` with ReLU between them. Its priors are
                shared, and so is its likelihood.
            kept: masks of the layers in the place of ``threshold``.
            estimator: of all layers; by default what each layer trains with.
        """
        layers = dense_layers(model)
        if layers is None:
            raise TypeError(
                f"{type(model).__name__} is not a plain perceptron; expected an MLP or nn.Sequential of "
                "LBBNNLinear or GaussianLinear with nn.ReLU between them"
            )
        masks = [layer.kept(threshold) for layer in layers] if kept is None else list(kept)
        if len(masks) != len(layers):
            raise ValueError(f"{len(masks)} masks for {len(layers)} layers; expected one each")
        made = FixedMLP(*(FixedLinear.of(l, m, estimator=estimator) for l, m in zip(layers, masks)))
        likelihood = getattr(model, "likelihood", None)
        if likelihood is not None:
            made.likelihood = likelihood
        return made.train(model.training)

    def layers(self) -> list[FixedLinear]:
        return [module for module in self if isinstance(module, FixedLinear)]

    def write_to(self, model: nn.Module) -> None:
        """Put the posterior of the kept weights into the network that they were taken from."""
        layers = dense_layers(model)
        if layers is None or len(layers) != len(self.layers()):
            raise ValueError(
                f"{type(model).__name__} is not the network that this was taken from; expected "
                f"{len(self.layers())} layers with nn.ReLU between them"
            )
        for fixed, layer in zip(self.layers(), layers):
            fixed.write_to(layer)

    def forward(self, x: Tensor) -> Tensor:
        current = current_pass()
        layers = self._plain()
        if layers is None:
            return nn.Sequential.forward(self, x)
        estimators = {layer._estimator(current) for layer in layers}
        if len(estimators) != 1:
            return nn.Sequential.forward(self, x)
        (estimator,) = estimators
        x = autocast(x)
        y, sums = _pass(layers, layers[0]._rows(x, current), estimator, current)
        if current.recorded is not None:
            current.recorded.leave_sums(layers, sums)  # type: ignore[arg-type]
        return y if y.dim() == x.dim() else y.view(*x.shape[:-1], layers[-1].out_features)

    def _plain(self) -> list[FixedLinear] | None:
        """The layers, unless somebody would notice that nothing else is called."""
        if _global_hooks():
            return None
        layers = []
        for name, module in self._modules.items():
            if name == "likelihood":
                continue
            if (
                module is None or module._forward_hooks or module._forward_pre_hooks
                or module._backward_hooks or module._backward_pre_hooks
            ):  # fmt: skip
                return None
            if type(module) is FixedLinear:
                layers.append(module)
            elif type(module) is not nn.ReLU:
                return None
        return layers


def costs_what_it_keeps(layer: BayesianLinear) -> bool:
    """Whether kernels compute with the kept weights of this layer alone; else masks stand in for them."""
    return FIXED_MLP.name in choose(layer.kappa).fused


def dense_layers(model: nn.Module) -> list[BayesianLinear] | None:
    """The layers of an MLP or Sequential of ``BayesianLinear`` with ReLU between them; None for another."""
    if isinstance(model, BayesianLinear):
        return [model]
    if not isinstance(model, nn.Sequential):
        return None
    modules = [module for name, module in model._modules.items() if name != "likelihood"]
    layers = modules[::2]
    if len(modules) % 2 == 0 or not all(type(m) is nn.ReLU for m in modules[1::2]):
        return None
    if not all(isinstance(m, BayesianLinear) and type(m).forward is BayesianLinear.forward for m in layers):
        return None
    return layers  # type: ignore[return-value]
