"""Checkpoints to continue from, exact to the bit, and networks saved at the ends of stages.

Both are safetensors files with a JSON header entry: nothing is unpickled. A checkpoint holds the network,
Adam's moments and step counts, the states of the random generators, and where the run stands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .._util.files import replace_file

_MODEL, _ADAM, _RANDOM, _PRUNING = "model.", "adam.", "random.", "pruning."
_NOISE = "noise."


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    # A copy each: safetensors refuses tensors that share memory, as Adam's step counts do.
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    with replace_file(path) as temporary:
        save_file(copies, temporary, metadata={"fastlbbnn": json.dumps(about)})


def _read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("fastlbbnn", "{}"))
            if about.get("kind") != kind:
                raise ValueError(f"{path} is not a {kind} of fastlbbnn; delete it, or give another folder")
            return {name: file.get_tensor(name) for name in file.keys()}, about
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}); delete it") from error


def save_network(path: Path, network: nn.Module, noise: nn.Module | None = None, **about: Any) -> None:
    """``noise``: a likelihood with parameters of its own, kept in the same file."""
    tensors = dict(network.state_dict())
    if noise is not None:
        tensors |= {_NOISE + name: t for name, t in noise.state_dict().items()}
    _write(path, tensors, {"kind": "network", **about})


def load_network(path: Path, network: nn.Module, noise: nn.Module | None = None) -> dict[str, Any]:
    """Fill ``network``, and ``noise`` if given; returns what was said about it."""
    tensors, about = _read(path, "network")
    try:
        network.load_state_dict({n: t for n, t in tensors.items() if not n.startswith(_NOISE)})
        if noise is not None:
            noise.load_state_dict(
                {n.removeprefix(_NOISE): t for n, t in tensors.items() if n.startswith(_NOISE)}
            )
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the network that run.json describes: {error}") from error
    return about


def save_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    position: dict[str, Any],
    pruning: nn.Module | None = None,
) -> None:
    tensors = {_MODEL + name: t for name, t in network.state_dict().items()}
    if pruning is not None:
        tensors |= {_PRUNING + name: t for name, t in pruning.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"{_ADAM}{index}.{name}": value for name, value in state.items()}
    tensors[_RANDOM + "training"] = generator.get_state()
    tensors[_RANDOM + "torch"] = torch.get_rng_state()
    _write(path, tensors, {"kind": "checkpoint", "position": position})


class Checkpoint:
    """A checkpoint that was read; ``restore`` puts it back."""

    def __init__(self, path: Path) -> None:
        self._tensors, about = _read(path, "checkpoint")
        self.position: dict[str, Any] = about["position"]

    def restore_network(self, network: nn.Module) -> None:
        network.load_state_dict(self._part(_MODEL))

    def restore(
        self,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        pruning: nn.Module | None = None,
    ) -> None:
        if pruning is not None:
            pruning.load_state_dict(self._part(_PRUNING))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in self._part(_ADAM).items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        generator.set_state(self._tensors[_RANDOM + "training"])
        torch.set_rng_state(self._tensors[_RANDOM + "torch"])

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t for n, t in self._tensors.items() if n.startswith(prefix)}
