"""From a trained network to what its indicators leave of it."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import __version__, reference
from ..nn.linear import BayesianLinear
from ..ops.checks import explain_failure
from ..ops.parameters import LayerParameters
from ..structure.paths import Structure, chain, check_threshold, connects, kept_weights, structure_of_layers
from ..structure.thresholds import resolve_threshold, warn_if_constant
from .model import SparseModel
from .network import SparseLayer, SparseNetwork, blocks_from_grid, index_dtype, row_offsets_of

if TYPE_CHECKING:
    from ..data.preparation import Preparation


def select(
    model: nn.Module,
    threshold: float = 0.5,
    *,
    reconnect: bool = False,
    posterior: bool = True,
    preparation: Preparation | None = None,
    class_names: Sequence[str] | None = None,
    likelihood: Any = None,
    provenance: Mapping[str, Any] | None = None,
) -> SparseModel:
    """The network with the weights whose inclusion probability is above ``threshold``.

    Its outputs are those of ``predict(model, x, mode="median-mean")`` before the softmax, and its
    samples those of ``mode="median"`` with the same generator, up to rounding. Units without a path to
    an output and inputs that nothing uses are removed. A unit without a path from an input is constant:
    it is removed, too, and its value goes into the biases of the units that it feeds. Where weights
    share indicators by blocks, units are removed by whole blocks, so that what is left stays in blocks.

    If no path from an input to an output is left, the outputs are constants: a UserWarning says so and
    names the threshold that would connect the network, and ``SparseModel.is_constant`` is True. With
    ``reconnect`` that threshold is used instead, and a UserWarning says which.

    Args:
        model: a BayesianLinear, an MLP, or an nn.Sequential of BayesianLinear and nn.ReLU (nn.Flatten in
            front, nn.Dropout and nn.Identity are passed over). A GaussianLinear keeps all weights.
        threshold: in [0, 1); 0.5 is the median probability model.
        reconnect: where nothing connects inputs and outputs, lower the threshold until something does
            (``fastlbbnn.resolve_threshold``).
        posterior: keep the scales for sampled predictions; else the means alone.
        preparation: how raw rows become the network's inputs (``Dataset.preparation``): the selected model
            then takes raw rows, and answers in the units of the data. None: rows are inputs.
        class_names: names of the classes; by default the preparation's.
        likelihood: what the outputs mean; by default the model's own.
        provenance: where the model came from, to be kept with it: what JSON holds. Versions and the density
            are added.
    """
    found = selection_of(model, threshold, reconnect=reconnect, posterior=posterior, stacklevel=4)
    return found.describe(preparation, class_names, likelihood, provenance)


@dataclass(eq=False)
class Selection:
    """A selected network, and the layers that it was selected from."""

    network: SparseNetwork
    threshold: float
    trained: nn.Module
    layers: list[nn.Module]
    kept: list[Tensor]  # by layer, bool [out_features, in_features]

    @cached_property
    def structure(self) -> Structure:
        """``fastlbbnn.structure_of`` the trained network at the threshold."""
        return structure_of_layers(self.layers, self.kept, self.threshold)

    def describe(
        self,
        preparation: Preparation | None = None,
        class_names: Sequence[str] | None = None,
        likelihood: Any = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> SparseModel:
        """The model, with what it is about: see ``select``."""
        weights = sum(mask.numel() for mask in self.kept)
        about = {
            "versions": {
                "fastlbbnn": __version__, "torch": torch.__version__, "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "density": sum(int(mask.sum()) for mask in self.kept) / weights,
            **(provenance or {}),
        }
        return SparseModel(
            self.network, preparation=preparation, class_names=class_names,
            likelihood=getattr(self.trained, "likelihood", None) if likelihood is None else likelihood,
            provenance=about,
        )


def selection_of(
    model: nn.Module, threshold: float = 0.5, *, reconnect: bool = False, posterior: bool = True,
    stacklevel: int = 3,
) -> Selection:
    """What ``select`` finds, before it is described. Each layer is asked once what it keeps."""
    threshold = check_threshold(threshold)
    # Parameters are checked first: probabilities of nan connect nothing.
    trained = cast("list[tuple[BayesianLinear, bool]]", chain(model, (BayesianLinear,)))
    for layer, _ in trained:
        # Mean logits: a selection draws nothing.
        logits = None if layer.inclusion is None else layer.inclusion.location()
        explain_failure((LayerParameters(layer.kappa, layer.rho, logits, layer.bias_kappa, layer.bias_rho),))
    kept = [kept_weights(layer, threshold) for layer, _ in trained]
    if not connects(kept):
        if reconnect:
            threshold = resolve_threshold(model, threshold, stacklevel=stacklevel)
            kept = [kept_weights(layer, threshold) for layer, _ in trained]
        else:
            warn_if_constant(model, threshold, stacklevel=stacklevel)
    layers = [_TrainedLayer.of(layer, relu, mask) for (layer, relu), mask in zip(trained, kept)]
    network = _compact(layers, threshold, posterior)
    return Selection(network, threshold, model, [layer for layer, _ in trained], kept)


@dataclass
class _TrainedLayer:
    """A layer of the trained network, dense, and which of its weights are kept."""

    mean: NDArray[np.float32]  # [N, K]
    scale: NDArray[np.float32]
    bias_mean: NDArray[np.float32]  # [N]
    bias_scale: NDArray[np.float32]
    kept: NDArray[np.bool_]  # [N, K]
    block: tuple[int, int]
    relu: bool

    @staticmethod
    @torch.no_grad()
    def of(layer: BayesianLinear, relu: bool, kept: Tensor) -> _TrainedLayer:
        block = (1, 1) if layer.inclusion is None else layer.block
        bias_mean = bias_scale = torch.zeros(kept.shape[0])
        if layer.bias_kappa is not None and layer.bias_rho is not None:
            bias_mean, bias_scale = layer.bias_kappa, reference.softplus(layer.bias_rho)

        def numpy(t: Tensor) -> NDArray[Any]:
            t = t.detach().cpu()
            return (t if t.dtype == torch.bool else t.float()).contiguous().numpy()

        return _TrainedLayer(
            mean=numpy(layer.kappa), scale=numpy(reference.softplus(layer.rho)),
            bias_mean=numpy(bias_mean), bias_scale=numpy(bias_scale),
            kept=numpy(kept), block=block, relu=relu,
        )


def _whole_groups(units: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Mark all units of a group of ``size`` neighbours where one of them is marked."""
    if size == 1:
        return units
    groups = np.zeros(-(-units.size // size) * size, np.bool_)
    groups[: units.size] = units
    return np.repeat(groups.reshape(-1, size).any(1), size)[: units.size]


def _compact(layers: list[_TrainedLayer], threshold: float, posterior: bool) -> SparseNetwork:
    # Units come and go in groups that blocks on either side of them do not cut.
    sizes = [layers[0].block[1]]
    sizes += [math.lcm(a.block[0], b.block[1]) for a, b in zip(layers, layers[1:])]

    # Backwards: what has a path to an output. needed[i] is about the inputs of layer i.
    needed = [np.ones(layers[-1].kept.shape[0], np.bool_)]
    for layer, size in zip(reversed(layers), reversed(sizes)):
        needed.insert(0, _whole_groups(np.any(layer.kept[needed[0]], axis=0), size))

    # Forwards: what of that has a path from an input. All outputs stay.
    live = [needed[0]]
    for layer, size, wanted in zip(layers, sizes[1:], needed[1:]):
        live.append(_whole_groups(layer.kept[:, live[-1]].any(1) & wanted, size))
    live.append(needed[-1])

    constant = [w & ~a for w, a in zip(needed, live)]
    network = SparseNetwork([], np.flatnonzero(live[0]).astype(np.int32), live[0].size, threshold)
    # The constant units' values, in float64: folding them must not cost precision.
    values = np.zeros(0)
    constants = []
    for i, layer in enumerate(layers):
        rows = np.concatenate([np.flatnonzero(live[i + 1]), np.flatnonzero(constant[i + 1])])
        fixed = np.flatnonzero(constant[i])
        weights = np.where(layer.kept, layer.mean, 0.0)[np.ix_(rows, fixed)].astype(np.float64)
        folded = layer.bias_mean[rows] + weights @ values
        count = int(live[i + 1].sum())
        network.layers.append(
            _slice(layer, rows[:count], np.flatnonzero(live[i]), folded[:count], posterior)
        )
        constants.append(
            _slice(layer, rows, fixed, layer.bias_mean[rows], posterior, in_blocks=False)
        )
        values = np.maximum(folded[count:], 0.0) if layer.relu else folded[count:]
    if posterior and any(c.any() for c in constant):
        network.constants = constants
    return network


def _slice(
    layer: _TrainedLayer, rows: NDArray, cols: NDArray, bias: NDArray, posterior: bool,
    in_blocks: bool = True,
) -> SparseLayer:
    """The weights from units ``cols`` to units ``rows``."""
    at = np.ix_(rows, cols)
    kept, mean, scale = layer.kept[at], layer.mean[at], layer.scale[at]
    row_of, columns = np.nonzero(kept)
    block = layer.block if in_blocks else (1, 1)
    blocks = None
    if block != (1, 1):
        # Indicators are shared: the first weight of a block says whether it is kept.
        grid = np.ascontiguousarray(kept[:: block[0], :: block[1]])
        blocks = blocks_from_grid(mean, scale if posterior else None, grid, block)
    return SparseLayer(
        rows=rows.size, cols=cols.size, row_offsets=row_offsets_of(row_of, rows.size),
        columns=columns.astype(index_dtype(cols.size)), mean=mean[kept],
        scale=scale[kept] if posterior else None, bias_mean=bias.astype(np.float32),
        bias_scale=layer.bias_scale[rows] if posterior else None,
        row_index=rows.astype(np.int32), relu=layer.relu, block=block, blocks=blocks,
    )
