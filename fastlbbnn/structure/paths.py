"""What a selected model looks like: which weights it keeps, and which of them lie on a path.

A weight is *kept* at the threshold lambda if its inclusion probability is above it (0.5: the median
probability model). It is *active* if it lies on a path of kept weights from an input to an output; the
others change nothing but constants. All counts are of weights, biases apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import reference
from ..nn.layer import BayesianLayer
from ..nn.linear import BayesianLinear
from ..nn.modes import WeightMode

_NO_OPS = (nn.Dropout, nn.Identity)


# --- the chain of layers --------------------------------------------------------------------------


def chain(
    model: nn.Module, kinds: tuple[type[nn.Module], ...] = (BayesianLayer, nn.Linear)
) -> list[tuple[nn.Module, bool]]:
    """The layers of a sequence in order, and whether a ReLU follows each.

    ``model`` is a layer of one of the ``kinds``, an MLP, or an nn.Sequential of layers and nn.ReLU
    (nn.Flatten in front, nn.Dropout and nn.Identity are passed over).
    """
    names = " or ".join(kind.__name__ for kind in kinds)
    layers: list[tuple[nn.Module, bool]] = []
    for module in _flat(model):
        if isinstance(module, kinds):
            layers.append((module, False))
        elif isinstance(module, nn.ReLU) and layers:
            layers[-1] = (layers[-1][0], True)
        elif isinstance(module, nn.Flatten) and not layers and module.start_dim == 1:
            continue
        elif not isinstance(module, _NO_OPS):
            raise TypeError(
                f"cannot use {type(module).__name__} here; expected an nn.Sequential or MLP of {names} and "
                "nn.ReLU (nn.Flatten in front, nn.Dropout, nn.Identity)"
            )
    if not layers:
        raise TypeError(f"{type(model).__name__} has no {names} layer: it has no structure")
    for (before, _), (layer, _) in zip(layers, layers[1:]):
        if layer.in_features != before.out_features:
            raise ValueError(
                f"a layer takes {layer.in_features} inputs and the one before has "
                f"{before.out_features} outputs; expected the same number"
            )
    return layers


def _flat(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for name, child in module._modules.items():
            if name != "likelihood":  # what it states, not what it computes
                yield from _flat(child)
    else:
        yield module


# --- one layer's weights --------------------------------------------------------------------------


def has_indicators(layer: nn.Module) -> bool:
    """Whether the layer's weights have inclusion probabilities of their own."""
    return isinstance(layer, BayesianLinear) and layer.inclusion is not None


@torch.no_grad()
def inclusion_of_weights(layer: nn.Module) -> Tensor:
    """The probability that a draw of the layer has each weight, ``[out_features, in_features]``.

    Latent binary layers: the marginal inclusion probabilities (blocks spread over their weights). Other
    Bayesian layers: the share that a draw keeps, the same for all. ``nn.Linear``: 1 where the weight is
    not zero.
    """
    if isinstance(layer, BayesianLinear) and layer.inclusion is not None:
        return _of_weights(layer, layer.inclusion.probabilities())
    if isinstance(layer, BayesianLayer):
        return torch.full_like(layer.kappa, layer.density(WeightMode.SAMPLED))
    weight = _plain_weight(layer)
    return (weight != 0).to(weight.dtype)


@torch.no_grad()
def kept_weights(layer: nn.Module, threshold: float = 0.5) -> Tensor:
    """Which weights the median modes use at this threshold: bool ``[out_features, in_features]``.

    Latent binary layers keep what has an inclusion probability above it. Layers with a pruning rule of
    their own (``kept_inputs``) keep the weights of the inputs that it keeps, whatever the threshold;
    others keep all. ``nn.Linear`` keeps what is not zero.
    """
    if isinstance(layer, BayesianLinear) and layer.inclusion is not None:
        # What a forward pass uses, so that both always agree.
        return _of_weights(layer, layer.inclusion.chosen(threshold))
    kept_inputs: Callable[[], Tensor] | None = getattr(layer, "kept_inputs", None)
    if kept_inputs is not None:
        kept: Tensor = kept_inputs()
        return kept.expand(layer.out_features, len(kept))  # type: ignore[call-overload]
    if isinstance(layer, BayesianLayer):
        return torch.ones_like(layer.kappa, dtype=torch.bool)
    return _plain_weight(layer) != 0


def _of_weights(layer: BayesianLinear, grid: Tensor) -> Tensor:
    """A number per block, given to each of its weights."""
    return reference.expand_blocks(grid, layer.out_features, layer.in_features, layer.block)


def _plain_weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    if not isinstance(weight, Tensor):
        raise TypeError(f"{type(layer).__name__} has no weights; expected a Bayesian layer or nn.Linear")
    return weight


def check_threshold(threshold: float) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        raise TypeError(f"threshold is a {type(threshold).__name__}; expected a float in [0, 1)")
    if not 0.0 <= threshold < 1.0:
        raise ValueError(f"threshold={threshold}; expected a probability in [0, 1)")
    return float(threshold)


# --- the network ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerStructure:
    """Counts of one layer's weights."""

    weights: int
    kept: int
    active: int
    mean_inclusion: float  # of all weights; rho(gamma|D) in the paper

    @property
    def density(self) -> float:
        return self.kept / self.weights

    @property
    def active_density(self) -> float:
        return self.active / self.weights


@dataclass(frozen=True)
class Structure:
    """A model at one threshold."""

    threshold: float
    layers: tuple[LayerStructure, ...]
    used_inputs: Tensor  # bool [in_features]: has a path to an output
    reached_outputs: Tensor  # bool [out_features]: has a path from an input; the others are constants

    @property
    def is_connected(self) -> bool:
        """Whether there is a path from an input to an output at all."""
        return bool(self.reached_outputs.any())

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def kept(self) -> int:
        return sum(layer.kept for layer in self.layers)

    @property
    def active(self) -> int:
        return sum(layer.active for layer in self.layers)

    @property
    def density(self) -> float:
        """Share of all weights that are kept: the paper's density of the median model."""
        return self.kept / self.weights

    @property
    def active_density(self) -> float:
        """Share of all weights that lie on a path from an input to an output."""
        return self.active / self.weights


def structure_of(model: nn.Module, threshold: float = 0.5) -> Structure:
    """Which weights ``model`` keeps at ``threshold``, and which of them lie on a path.

    Args:
        model: an MLP or nn.Sequential of Bayesian layers (or nn.Linear, for pruned networks) and ReLU.
        threshold: inclusion probability above which a weight is kept, in [0, 1).
    """
    threshold = check_threshold(threshold)
    layers = [layer for layer, _ in chain(model)]
    return structure_of_layers(layers, [kept_weights(layer, threshold) for layer in layers], threshold)


def structure_of_layers(layers: Sequence[nn.Module], kept: list[Tensor], threshold: float) -> Structure:
    """``structure_of`` where it is known already which weights each layer keeps."""
    reached, needed = _reach(kept)
    rows = []
    for i, layer in enumerate(layers):
        active = kept[i] & reached[i] & needed[i + 1][:, None]
        mean = inclusion_of_weights(layer).double().mean().item()
        rows.append(LayerStructure(kept[i].numel(), int(kept[i].sum()), int(active.sum()), mean))
    return Structure(threshold, tuple(rows), needed[0], reached[-1])


def _reach(kept: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Units with a path from an input, and units with a path to an output; layer by layer, inputs first."""
    reached = [kept[0].new_ones(kept[0].shape[1])]
    for mask in kept:
        reached.append((mask & reached[-1]).any(1))
    needed = [kept[-1].new_ones(kept[-1].shape[0])]
    for mask in reversed(kept):
        needed.insert(0, (mask & needed[0][:, None]).any(0))
    return reached, needed


def connects(kept: Iterable[Tensor]) -> bool:
    """Whether these weights, layer by layer, make a path from an input to an output."""
    reached: Tensor | None = None
    for mask in kept:
        reached = (mask if reached is None else mask & reached).any(1)
    return reached is not None and bool(reached.any())


def layer_structure(model: nn.Module, threshold: float = 0.5) -> tuple[LayerStructure, ...]:
    """The layers of ``structure_of(model, threshold)``."""
    return structure_of(model, threshold).layers


# --- paths ----------------------------------------------------------------------------------------


def is_connected(model: nn.Module, threshold: float = 0.5) -> bool:
    """Whether some path from an input to an output has all its weights kept at ``threshold``.

    Without one the selected model gives the same output for every input.
    """
    threshold = check_threshold(threshold)
    return connects(kept_weights(layer, threshold) for layer, _ in chain(model))
