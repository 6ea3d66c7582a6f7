"""What a selected model looks like: which weights it keeps, and which of them lie on a path.

A weight is *kept* at the threshold lambda if its inclusion probability is above it (0.5: the median
probability model). It is *active* if it lies on a path of kept weights from an input to an output; the
others change nothing but constants. All counts are of weights, biases apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import reference
from ..nn.layer import BayesianLayer
from ..nn.linear import BayesianLinear
from ..nn.modes import WeightMode

_NO_OPS = (nn.Dropout, nn.Identity)

NO_PATH = "no path from an input to an output has all its weights above threshold={}"
_NOTHING_HELPS = "no threshold connects them, as every path has a weight of inclusion probability 0"


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
                f"{before.out_features} outputs; expected as many"
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
    if has_indicators(layer):
        return reference.expand_blocks(layer.inclusion.probabilities(), *layer.kappa.shape, layer.block)
    if isinstance(layer, BayesianLayer):
        return torch.full_like(layer.kappa, layer.density(WeightMode.SAMPLED))
    return (layer.weight != 0).to(layer.weight.dtype)


@torch.no_grad()
def kept_weights(layer: nn.Module, threshold: float = 0.5) -> Tensor:
    """Which weights the median modes use at this threshold: bool ``[out_features, in_features]``.

    Latent binary layers keep what has an inclusion probability above it. Layers with a pruning rule of
    their own (``kept_inputs``) keep the weights of the inputs that it keeps, whatever the threshold;
    others keep all. ``nn.Linear`` keeps what is not zero.
    """
    if has_indicators(layer):
        # What a forward pass uses, so that both always agree.
        return reference.expand_blocks(layer.decided_logits(threshold) > 0.0, *layer.kappa.shape, layer.block)
    if hasattr(layer, "kept_inputs"):
        return layer.kept_inputs().expand(layer.out_features, layer.in_features)
    if isinstance(layer, BayesianLayer):
        return torch.ones_like(layer.kappa, dtype=torch.bool)
    return layer.weight != 0


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


@torch.no_grad()
def bottleneck(model: nn.Module) -> float:
    """The largest inclusion probability p such that some path has only weights of at least p.

    That is max over paths of the min over a path's weights, exactly: with b_0 = 1 for the inputs,

        b_l[j] = max_k min(alpha_l[j, k], b_{l-1}[k]),

    and then the largest of the outputs. A threshold connects the network if and only if it is below.
    Layers without inclusion probabilities count 1 for a weight that they keep and 0 for another.
    """
    best: Tensor | None = None
    for layer, _ in chain(model):
        if has_indicators(layer):
            scores = inclusion_of_weights(layer)
        else:
            scores = kept_weights(layer).to(torch.float32)
        if best is not None:
            scores = torch.minimum(scores, best.to(scores))
        best = scores.amax(1)
    return best.max().item()


def connecting_threshold(model: nn.Module, threshold: float = 0.5) -> float:
    """The largest threshold, not above ``threshold``, at which the network has a path.

    That is ``threshold`` itself where it has one; else the next number below ``bottleneck(model)``,
    since a weight is kept if its probability is *above* the threshold. ValueError if there is none:
    everything on every path has an inclusion probability of 0.
    """
    threshold = check_threshold(threshold)
    if is_connected(model, threshold):
        return threshold
    best = min(bottleneck(model), threshold)
    if best <= 0.0:
        raise ValueError(
            f"{NO_PATH.format(threshold)}, and {_NOTHING_HELPS}"
        )
    # Probabilities are compared in their own dtype.
    dtypes = {p.dtype for layer, _ in chain(model) for p in layer.parameters(recurse=False)}
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    return torch.nextafter(torch.tensor(best, dtype=coarsest), torch.zeros((), dtype=coarsest)).item()


def resolve_threshold(
    model: nn.Module, threshold: float = 0.5, *, warn: bool = True, stacklevel: int = 2
) -> float:
    """``threshold``, or the closest one below it at which the selected model is no constant.

    Give the result to ``predict``, ``density`` and ``select``. A UserWarning says when it differs from what
    was asked for (``warn=False``: silently), and where nothing helps, when ``threshold`` is returned.
    ``stacklevel`` is that of ``warnings.warn``.
    """
    if is_connected(model, threshold):
        return float(threshold)
    found, message = float(threshold), f"the outputs are constants: {_NOTHING_HELPS}"
    if bottleneck(model) > 0.0:
        found = connecting_threshold(model, threshold)
        message = f"using threshold={found:.6g}, the closest one below with a path"
    if warn:
        warnings.warn(f"{NO_PATH.format(threshold)}: {message}", UserWarning, stacklevel=stacklevel)
    return found


def warn_if_constant(model: nn.Module, threshold: float, stacklevel: int = 2) -> None:
    """A UserWarning if the model selected at ``threshold`` gives the same output for every input."""
    if is_connected(model, threshold):
        return
    advice = _NOTHING_HELPS
    if bottleneck(model) > 0.0:
        found = connecting_threshold(model, threshold)
        advice = f"threshold={found:.6g} is the closest with a path: fastlbbnn.resolve_threshold"
    warnings.warn(
        f"{NO_PATH.format(threshold)}: the selected network gives the same output for every input ({advice})",
        UserWarning,
        stacklevel=stacklevel,
    )
