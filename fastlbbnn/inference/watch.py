"""Notices a likelihood with parameters that are not trained."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

#: Bounds after which it is asked whether the likelihood has moved.
PATIENCE = 20

_DONE = "done"


def watch(likelihood: nn.Module, layers: Sequence[nn.Module]) -> None:
    """A UserWarning, once, if the network learns and the likelihood does not.

    Values are compared, and only after every ``PATIENCE`` calls until the likelihood has moved, so that this
    costs training nothing. Frozen likelihoods are left alone.
    """
    state: Any = likelihood.__dict__.get("_watched")
    if state is _DONE or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    own = [p for p in likelihood.parameters() if p.requires_grad]
    if not own:
        return
    if state is None:
        likelihood.__dict__["_watched"] = [0, _values(own), _first_values(layers)]
        return
    state[0] += 1
    if state[0] % PATIENCE:
        return
    if _values(own) != state[1]:
        likelihood.__dict__["_watched"] = _DONE
    elif _first_values(layers) != state[2]:
        likelihood.__dict__["_watched"] = _DONE
        warnings.warn(
            f"the {type(likelihood).__name__} is not trained: in {state[0]} steps the network has changed "
            "and the likelihood has not. State it on the model (fastlbbnn.set_likelihood) before the "
            "optimiser is made from fastlbbnn.param_groups(model), or hold it fixed (requires_grad_(False))",
            UserWarning,
            stacklevel=3,
        )


def _values(parameters: Sequence[nn.Parameter]) -> list[Any]:
    return [p.detach().flatten().tolist() for p in parameters]


def _first_values(layers: Sequence[nn.Module]) -> list[float]:
    """One number of each parameter: enough to see that some of them are trained."""
    return [p.detach().flatten()[0].item() for layer in layers for p in layer.parameters() if p.numel()]
