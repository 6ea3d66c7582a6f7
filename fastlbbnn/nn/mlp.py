"""Multilayer perceptrons of Bayesian layers, computed in one fused call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._util.dtypes import autocast
from ..ops import functional
from .layer import BayesianLayer
from .linear import BayesianLinear, LBBNNLinear
from .modes import Pass, WeightMode, current_pass
from .recording import leave_sums

if TYPE_CHECKING:
    from ..inference.likelihoods import Likelihood


class MLP(nn.Sequential):
    """Bayesian linear layers with ReLU between them.

        MLP(784, 400, 600, 10, prior=FixedPrior(psi=0.1))

    is ``nn.Sequential(LBBNNLinear(784, 400, ...), nn.ReLU(), LBBNNLinear(400, 600, ...), ...)``, with the
    same parameters, state and numbers. Where it can, a pass that samples weights goes through all layers
    in one operator, which saves what each layer otherwise costs outside its kernels: about a fifth of a
    training step at a few hundred units a layer.

    Args:
        sizes: inputs, hidden units, outputs.
        layer: what to build layers with: any ``BayesianLayer``, called with inputs and outputs.
        likelihood: what the outputs say about the targets, a name or a ``Likelihood``; as with
            ``fastlbbnn.set_likelihood``.
        **kwargs: for every layer.
    """

    def __init__(
        self,
        *sizes: int,
        layer: Callable[..., BayesianLayer] = LBBNNLinear,
        likelihood: str | Likelihood | None = None,
        **kwargs,
    ) -> None:
        if len(sizes) < 2:
            raise ValueError(f"sizes={sizes}; expected at least inputs and outputs")
        modules: list[nn.Module] = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            modules += [layer(inputs, outputs, **kwargs), nn.ReLU()]
        super().__init__(*modules[:-1])
        if likelihood is not None:
            from ..inference.likelihoods import (
                set_likelihood,  # the one thing from above that a network holds
            )

            set_likelihood(self, likelihood)

    # A likelihood with parameters is a module of the network, and none of its layers.

    def __iter__(self) -> Iterator[nn.Module]:
        return (module for name, module in self._modules.items() if name != "likelihood")

    def __len__(self) -> int:
        return len(self._modules) - ("likelihood" in self._modules)

    def forward(self, x: Tensor) -> Tensor:
        current = current_pass()
        mode = current.mode
        if mode is None:
            mode = WeightMode.RELAXED if self.training else WeightMode.MEAN
        layers = self._fusable(mode, current)
        if layers is None:
            return super().forward(x)

        first = layers[0]
        first._check_input(x, current)
        x = autocast(x)
        rows = first._rows(x, current)
        random_logits = mode is not WeightMode.MEDIAN and any(l.random_logits for l in layers)
        if current.samples is None or not random_logits:
            seeds = functional.draw_seed(current.generator, x.device, (len(layers),))
            y, sums = _draw(layers, rows, mode, current, seeds, random_logits, current.samples)
        else:
            # A kernel's draws share their logits: here each has its own. Seeds as in a Sequential.
            seeds = functional.draw_seed(current.generator, x.device, (len(layers), current.samples))
            once = current.samples == 1
            shared = rows.dim() == 2
            draws = [
                _draw(layers, rows if shared else rows[s], mode, current, of_sample, True, None, once)
                for s, of_sample in enumerate(seeds.T.contiguous())
            ]
            y, sums = (torch.stack(parts) for parts in zip(*draws))
            sums = sums.mean(0)
        leave_sums(layers, sums)
        if random_logits:
            for layer in layers:
                layer.leave_inclusion_kl(mode)
        return y if y.dim() == x.dim() else y.view(*x.shape[:-1], layers[-1].out_features)

    def _fusable(self, mode: WeightMode, current: Pass) -> list[BayesianLinear] | None:
        """The layers, if this pass can skip what stands between them; else None."""
        if not mode.random or current.kl == "sampled":
            return None
        layers = []
        for i, module in enumerate(self):
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return None
            if i % 2:
                if type(module) is not nn.ReLU:
                    return None
            elif not isinstance(module, BayesianLinear) or (
                mode is WeightMode.RELAXED and module.estimator != "concrete"
            ):
                return None
            else:
                layers.append(module)
        if len(self) % 2 == 0:
            return None
        if current.samples is not None and 0 < sum(l.random_logits for l in layers) < len(layers):
            return None  # some layers draw all samples at once, others one by one
        return layers


def _draw(
    layers: list[BayesianLinear], rows: Tensor, mode: WeightMode, current: Pass, seeds: Tensor,
    random_logits: bool, samples: int | None, once: bool = True,
) -> tuple[Tensor, Tensor]:
    """Draws that share their logits, by one call: outputs and the five sums of every layer.

    ``samples`` None: one draw, without a sample axis.
    """
    parameters: list[Tensor | None] = []
    if random_logits:
        for layer, seed in zip(layers, seeds.unbind()):
            parameters += layer.draw_parameters(mode, current, seed, once)
    else:
        for layer in layers:
            parameters += layer.draw_parameters(mode, current)
    return functional.gated_mlp_unchecked(
        rows, parameters, seeds, samples or 1, [layer.block for layer in layers],
        [layer.temperature for layer in layers], mode is not WeightMode.RELAXED,
        single=samples is None,
    )
