"""Multilayer perceptrons of Bayesian layers, computed in one fused call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _every_module

from .._util.dtypes import autocast
from ..ops.dispatch import call
from ..ops.gated_mlp import GATED_MLP
from ..ops.local_mlp import LOCAL_MLP
from .layer import LAYERS
from .linear import BayesianLinear, LBBNNLinear
from .modes import WeightMode
from .passes import Pass, current_pass

if TYPE_CHECKING:
    from ..inference.likelihoods import Likelihood


class MLP(nn.Sequential):
    """Bayesian linear layers with ReLU between them.

        MLP(784, 400, 600, 10, prior=FixedPrior(psi=0.1))

    is ``nn.Sequential(LBBNNLinear(784, 400, ...), nn.ReLU(), LBBNNLinear(400, 600, ...), ...)``, with the
    same parameters, state and numbers. Where it can, a pass that samples weights goes through all layers
    in one operator, which saves what each layer otherwise costs outside its kernels: about a fifth of a
    training step at a few hundred units per layer.

    Args:
        sizes: inputs, hidden units, outputs.
        layer: what to build layers with: any ``BayesianLayer``, called with inputs and outputs, or the name
            of one (``nn.LAYERS``).
        likelihood: what the outputs say about the targets, a name or a ``Likelihood``; as with
            ``fastlbbnn.set_likelihood``.
        **kwargs: for every layer.
    """

    def __init__(
        self,
        *sizes: int,
        layer: str | Callable[..., nn.Module] = LBBNNLinear,
        likelihood: str | Likelihood | None = None,
        **kwargs: Any,
    ) -> None:
        if len(sizes) < 2:
            raise ValueError(f"sizes={sizes}; expected at least inputs and outputs")
        if isinstance(layer, str):
            layer = LAYERS.find(layer)
        modules: list[nn.Module] = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            modules += [layer(inputs, outputs, **kwargs), nn.ReLU()]
        super().__init__(*modules[:-1])
        if likelihood is not None:
            # The one thing from above that a network holds.
            from ..inference.likelihoods import set_likelihood

            set_likelihood(self, likelihood)

    # A likelihood with parameters is a module of the network, but not one of its layers.

    def __iter__(self) -> Iterator[nn.Module]:
        return (module for name, module in self._modules.items() if name != "likelihood")

    def __len__(self) -> int:
        return len(self._modules) - ("likelihood" in self._modules)

    def forward(self, x: Tensor) -> Tensor:
        current = current_pass()
        found = self._fusable(current)
        if found is None:
            return super().forward(x)
        layers, local = found

        mode = WeightMode.RELAXED if current.mode is None else current.mode  # None: all are in train()
        if torch.is_autocast_enabled(x.device.type):
            x = autocast(x)
        first = layers[0]
        kappa = first._parameters.get("kappa")
        if (
            current.samples is None and kappa is not None and x.dim() == 2 and x.dtype is kappa.dtype
            and x.shape[1] == first.in_features and x.device == kappa.device
        ):  # fmt: skip
            rows = x  # what most calls are given, without a call
        else:
            rows = first._rows(x, current)
        random_logits = mode is not WeightMode.MEDIAN and True in [l.random_logits for l in layers]
        if current.samples is None or not random_logits:
            seeds = current.draw_seed(x.device, (len(layers),))
            y, sums = _draw(layers, rows, mode, local, random_logits, current, seeds, current.samples)
        else:
            # A kernel's draws share their logits: here each has its own. Seeds as in a Sequential.
            seeds = current.draw_seed(x.device, (len(layers), current.samples))
            once, shared = current.samples == 1, rows.dim() == 2
            draws = [
                _draw(layers, rows if shared else rows[s], mode, local, True, current, of_sample, None, once)
                for s, of_sample in enumerate(seeds.T.contiguous())
            ]
            y, sums = (torch.stack(parts) for parts in zip(*draws))
            sums = sums.mean(0)
        if current.recorded is not None:
            current.recorded.leave_sums(layers, sums)
        if random_logits:
            for layer in layers:
                layer._leave_inclusion_kl(mode, current)
        return y if y.dim() == x.dim() else y.view(*x.shape[:-1], layers[-1].out_features)

    def _fusable(self, current: Pass) -> tuple[list[BayesianLinear], bool] | None:
        """The layers, if this pass can skip what stands between them, and whether they draw activations;
        else None.

        It cannot where somebody would notice: a hook, a layer with a forward of its own, one that is in
        eval() beside others in train().
        """
        mode = current.mode
        if current.kl == "sampled" or (mode is not None and not mode.random) or _global_hooks():
            return None
        layers: list[BayesianLinear] = []
        linear = False
        for name, module in self._modules.items():
            if name == "likelihood":
                continue
            linear = not linear
            if (
                module is None or module._forward_hooks or module._forward_pre_hooks
                or module._backward_hooks or module._backward_pre_hooks
            ):  # fmt: skip
                return None
            if not linear:
                if type(module) is not nn.ReLU:
                    return None
            elif type(module).forward is not BayesianLinear.forward or "forward" in module.__dict__:
                return None
            elif mode is None and not module.training:
                return None
            else:
                layers.append(module)  # type: ignore[arg-type]
        if not linear:
            return None  # ends with a ReLU
        if current.samples is not None and 0 < sum([l.random_logits for l in layers]) < len(layers):
            return None  # some layers draw all samples at once, others one by one
        drawn = WeightMode.RELAXED if mode is None else mode
        local = layers[0]._draws_activations(drawn, current)
        for layer in layers[1:]:
            if layer.estimator != layers[0].estimator and layer._draws_activations(drawn, current) != local:
                return None
        return layers, local


def _global_hooks() -> bool:
    """Whether somebody watches every module."""
    return bool(
        _every_module._global_forward_hooks or _every_module._global_forward_pre_hooks
        or _every_module._global_backward_hooks or _every_module._global_backward_pre_hooks
    )  # fmt: skip


def _draw(
    layers: list[BayesianLinear], rows: Tensor, mode: WeightMode, local: bool, random_logits: bool,
    current: Pass, seeds: Tensor, samples: int | None, once: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Draws that share their logits, by one call: outputs and the five sums of every layer.

    ``samples`` None: one draw, without a sample axis. ``local``: activations are drawn, not weights.
    ``random_logits``: those of some layers are a draw.
    """
    if random_logits:
        parameters = [l._drawn_from(mode, current, seed, once) for l, seed in zip(layers, seeds.unbind())]
    else:
        parameters = [layer._drawn_from(mode, current) for layer in layers]
    if local:
        return call(LOCAL_MLP, rows, parameters, seeds, samples or 1, single=samples is None)
    return call(
        GATED_MLP, rows, parameters, seeds, samples or 1, [layer.block for layer in layers],
        [layer.temperature for layer in layers], mode is not WeightMode.RELAXED, single=samples is None,
    )
