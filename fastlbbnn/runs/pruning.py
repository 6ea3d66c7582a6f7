"""Pruning of plain networks of ``nn.Linear`` by magnitude: the paper's baseline, and gradual pruning.

The paper trains a dense network and then removes "the corresponding share of weights/neurons having the
smallest magnitude (absolute value)", without training on: ``prune_weights``, ``prune_neurons``. Neither it
nor its supplement says more, and no code is published. What is read into it here:

* Densities are shares of weights; biases stay and are not counted, as for the Bayesian methods. Removing a
  neuron removes its bias too, and counts the weights into and out of it as removed. With ``of="neurons"`` the
  density is the share of hidden neurons instead; the share of weights left is smaller then.
* Only hidden neurons can go. The magnitude of a neuron is the mean absolute value of the weights into it.
* Within a layer (``scope="layer"``, the default: no layer can be emptied by another's scale) or over all
  layers at once (``scope="global"``).

The paper's tables call their better column "neuron pruning" and the worse one "weight pruning". By what these
functions give on its data the headings are exchanged: ``prune_weights`` loses little accuracy, as in the
"neuron" column, and ``prune_neurons(..., of="neurons")`` comes out as the "weight" column.

``GradualPruning`` (Zhu and Gupta 2017, "To prune, or not to prune") is what is done nowadays: weights go step
by step while the others are trained on.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int

SCOPES = ("layer", "global")


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Name -> layer, in the order in which the model lists them."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise ValueError(f"{type(model).__name__} has no nn.Linear layers; expected at least one to prune")
    return layers


def weight_density(model: nn.Module) -> float:
    """Share of the weights of all linear layers, biases apart, that are not zero."""
    weights = [layer.weight for layer in linear_layers(model).values()]
    return sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)


@torch.no_grad()
def prune_weights(model: nn.Module, density: float, scope: str = "layer") -> dict[str, Tensor]:
    """Sets the smallest weights to zero, so that round(density * weights) are left, of each layer or of all.

    Returns which weights are left, name -> bool [out, in].
    """
    _check(density, scope)
    layers = linear_layers(model)
    masks = _largest({name: layer.weight.abs() for name, layer in layers.items()}, density, scope)
    for name, layer in layers.items():
        layer.weight.masked_fill_(~masks[name], 0.0)
    return masks


@torch.no_grad()
def prune_neurons(
    model: nn.Module, density: float, scope: str = "layer", *, of: str = "weights"
) -> dict[str, Tensor]:
    """Removes the smallest hidden neurons until at most ``density`` of the weights are left (or of the hidden
    neurons, with ``of="neurons"``).

    With ``scope="layer"`` all hidden layers lose the same share of their neurons; with "global" the smallest
    of all go first. Each hidden layer keeps at least one neuron. A removed neuron's weights, in and out, and
    its bias are zero: the outputs are those of a network without it. The layers must follow one another.

    Returns which neurons are left, name of a hidden layer -> bool [out].
    """
    _check(density, scope)
    counts = {"weights": _weights, "neurons": _hidden}
    if of not in counts:
        raise ValueError(f"of={of!r}; expected one of {', '.join(map(repr, counts))}")
    count = counts[of]
    layers = linear_layers(model)
    names, chain = list(layers), list(layers.values())
    for (a, first), (b, second) in zip(list(layers.items()), list(layers.items())[1:]):
        if first.out_features != second.in_features:
            raise ValueError(
                f"{a} has {first.out_features} outputs and {b} {second.in_features} inputs; expected layers "
                "that follow one another"
            )
    sizes = [chain[0].in_features, *(layer.out_features for layer in chain)]
    kept = [torch.ones(n, dtype=torch.bool, device=chain[0].weight.device) for n in sizes[1:-1]]
    left, limit = list(sizes), density * count(sizes)
    for layer, neuron in _removal_order(chain[:-1], scope):
        if count(left) <= limit:
            break
        if left[layer + 1] > 1:
            kept[layer][neuron] = False
            left[layer + 1] -= 1
    if count(left) > limit:
        raise ValueError(
            f"density={density}; expected at least {count(left) / count(sizes):.3g}, where every hidden "
            f"layer of {'-'.join(map(str, sizes))} has one neuron left"
        )
    for mask, before, following in zip(kept, chain, chain[1:]):
        before.weight[~mask] = 0.0
        if before.bias is not None:
            before.bias[~mask] = 0.0
        following.weight[:, ~mask] = 0.0
    return dict(zip(names, kept))


def _weights(sizes: list[int]) -> int:
    return sum(a * b for a, b in zip(sizes, sizes[1:]))


def _hidden(sizes: list[int]) -> int:
    return sum(sizes[1:-1])


def _removal_order(hidden: list[nn.Linear], scope: str) -> Iterable[tuple[int, int]]:
    """(layer, neuron), the first to go first."""
    keyed = []
    for i, layer in enumerate(hidden):
        magnitude = layer.weight.abs().mean(1)
        order = magnitude.argsort(stable=True).tolist()
        for place, neuron in enumerate(order):
            # Within layers, neurons go in the order of their rank as a share of the layer.
            key = magnitude[neuron].item() if scope == "global" else (place + 1) / len(order)
            keyed.append((key, i, neuron))
    return [(i, neuron) for _, i, neuron in sorted(keyed)]


def _largest(magnitudes: dict[str, Tensor], density: float, scope: str) -> dict[str, Tensor]:
    """Where the largest round(density * n) of a tensor (or of all) are; among equals, the first."""
    if scope == "layer":
        return {name: _top(m.flatten(), density, name).view_as(m) for name, m in magnitudes.items()}
    everything = _top(torch.cat([m.flatten() for m in magnitudes.values()]), density, "the network")
    parts = everything.split([m.numel() for m in magnitudes.values()])
    return {name: part.view_as(m) for (name, m), part in zip(magnitudes.items(), parts)}


def _top(values: Tensor, density: float, what: str) -> Tensor:
    count = round(density * len(values))
    if count == 0:
        raise ValueError(
            f"density={density} leaves none of the {len(values)} weights of {what}; expected a density that "
            "leaves at least one"
        )
    mask = torch.zeros_like(values, dtype=torch.bool)
    mask[values.argsort(descending=True, stable=True)[:count]] = True
    return mask


def _check(density: float, scope: str) -> None:
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0.0 < density <= 1.0:
        raise ValueError(f"density={density!r}; expected the share of weights to keep, above 0 and at most 1")
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r}; expected one of {', '.join(map(repr, SCOPES))}")


class GradualPruning(nn.Module):
    """Prunes while the network trains: call ``step()`` after every step of the optimiser.

        pruning = GradualPruning(model, density=0.05, begin=1000, end=10000, every=100)
        for ...:
            loss.backward(); optimizer.step(); pruning.step()

    Between the steps t = ``begin`` and ``end`` the density falls as Zhu and Gupta's cubic,

        d(t) = d_end + (d_0 - d_end) (1 - (t - begin) / (end - begin))^3,   d_0 = 1,

    and every ``every`` steps, and at ``end``, the smallest weights that are left are masked until the density
    is d(t): exactly, up to rounding to whole weights. A masked weight stays zero, and its gradient is masked
    as well, so that norms of gradients are those of the network that is left. Masks and step are buffers:
    ``state_dict`` of this module, beside the model's, is all that is needed to go on.
    """

    def __init__(
        self,
        model: nn.Module,
        density: float,
        *,
        begin: int,
        end: int,
        every: int = 100,
        scope: str = "layer",
    ) -> None:
        super().__init__()
        _check(density, scope)
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise ValueError(f"begin={begin!r}; expected a step, 0 or later")
        check_positive_int("end", end)
        check_positive_int("every", every)
        if end <= begin:
            raise ValueError(f"begin={begin} and end={end}; expected the end after the beginning")
        self.density, self.begin, self.end, self.every, self.scope = density, begin, end, every, scope
        self._layers = linear_layers(model)
        self.steps: Tensor
        self.register_buffer("steps", torch.tensor(0))
        self._hooks = []
        for name, layer in self._layers.items():
            self.register_buffer(_buffer(name), torch.ones_like(layer.weight, dtype=torch.bool))
            self._hooks.append(layer.weight.register_hook(self._mask_gradient(name)))

    def masks(self) -> dict[str, Tensor]:
        """Which weights are left, name of a layer -> bool [out, in]."""
        return {name: self.get_buffer(_buffer(name)) for name in self._layers}

    def target(self, step: int) -> float:
        """d(t), 1 before ``begin`` and the final density from ``end`` on."""
        progress = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.density + (1.0 - self.density) * (1.0 - progress) ** 3

    @torch.no_grad()
    def step(self) -> None:
        """One more step was taken: masks more weights if it is time, and keeps the masked ones at zero.

        (The optimiser's momentum goes on moving a weight whose gradient has become zero.)
        """
        self.steps += 1
        t = int(self.steps)
        if t == self.end or (self.begin <= t < self.end and (t - self.begin) % self.every == 0):
            # Masked weights come last, behind weights that happen to be zero.
            magnitudes = {
                name: torch.where(self.masks()[name], layer.weight.abs(), -1.0)
                for name, layer in self._layers.items()
            }
            for name, mask in _largest(magnitudes, self.target(t), self.scope).items():
                self.get_buffer(_buffer(name)).copy_(mask)
        for name, mask in self.masks().items():
            self._layers[name].weight.masked_fill_(~mask, 0.0)

    def detach(self) -> None:
        """Leaves the network as it is; its gradients are no longer masked."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _mask_gradient(self, name: str):
        return lambda gradient: gradient * self.get_buffer(_buffer(name))


def _buffer(layer: str) -> str:
    """Names of buffers have no dots."""
    return "mask_" + layer.replace(".", "_")
