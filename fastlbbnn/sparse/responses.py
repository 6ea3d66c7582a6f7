"""The mean of a response given a network's outputs, in numpy: what a file's likelihood says.

A likelihood is known here by its configuration, ``{"name": ...}``; those that numpy does not know are made
by ``fastlbbnn.inference.likelihoods``, with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, Any]


def _softmax(outputs: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(outputs - outputs.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _sigmoid(outputs: NDArray[Any]) -> NDArray[Any]:
    small = np.exp(-np.abs(outputs))  # never too large
    return np.where(outputs >= 0.0, 1.0, small) / (1.0 + small)


MEANS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "categorical": _softmax, "bernoulli": _sigmoid, "gaussian": lambda outputs: outputs, "poisson": np.exp,
    "gaussian-dispersion": lambda outputs: outputs,
}


def config_of(likelihood: Any) -> dict[str, Any] | None:
    """The configuration of a likelihood that is given by name, as an object or as a configuration."""
    if likelihood is None:
        return None
    if isinstance(likelihood, str):
        likelihood = {"name": likelihood}
    elif not isinstance(likelihood, Mapping):
        if not hasattr(likelihood, "to_config"):
            raise TypeError(
                f"likelihood is a {type(likelihood).__name__} without to_config(), so a file cannot hold it; "
                "expected a name, or a Likelihood"
            )
        likelihood = likelihood.to_config()
    if not isinstance(likelihood.get("name"), str):
        raise ValueError(f"likelihood={dict(likelihood)!r} has no name; expected {{'name': ..., ...}}")
    return dict(likelihood)


def mean_of(likelihood: Config, outputs: Any) -> Any:
    """Mean of the response for outputs [..., n, k], an array or a tensor."""
    name = likelihood["name"]
    if isinstance(outputs, np.ndarray):
        if name in MEANS:
            return MEANS[name](outputs)
        import torch

        return torch_likelihood(likelihood).mean(torch.from_numpy(outputs)).numpy()
    return torch_likelihood(likelihood).mean(outputs)


def torch_likelihood(likelihood: Config) -> Any:
    """The object, of ``fastlbbnn.inference.likelihoods``."""
    from ..inference.likelihoods import Likelihood

    return Likelihood.from_config(likelihood)
