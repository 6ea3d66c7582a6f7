"""Thresholds on inclusion probabilities: which leave a path from an input to an output, and what to do.

A threshold connects the network if some path has only weights with a larger inclusion probability.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from .paths import chain, check_threshold, has_indicators, inclusion_of_weights, is_connected, kept_weights

NO_PATH = "no path from an input to an output has all its weights above threshold={}"
_NOTHING_HELPS = "no threshold connects them, as every path has a weight of inclusion probability 0"


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
    assert best is not None  # a chain has a layer
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
    """``threshold``, or the closest one below it at which the selected model is not a constant.

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
