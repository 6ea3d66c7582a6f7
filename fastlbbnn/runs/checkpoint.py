"""Checkpoints to continue from, exact to the bit, and networks saved at the ends of stages.

Both are safetensors files with a JSON header entry: nothing is unpickled. A checkpoint holds the network,
the optimiser's state (of Adam: moments and step counts), the states of the random generators, and where the
run stands. A checksum refuses what a disk or a copy has changed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .._util.files import replace_file
from .._util.typed import wrong_field

_MODEL, _OPTIMIZER, _RANDOM, _PRUNING = "model.", "optimizer.", "random.", "pruning."

#: What to do about a file that cannot be used.
_REMEDY = "put back a copy of it, or train again (--restart, resume=False)"


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    # A copy each: safetensors refuses tensors that share memory, as Adam's step counts do.
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    about = {**about, "checksum": _checksum(copies, about)}
    with replace_file(path) as temporary:
        try:
            save_file(copies, temporary, metadata={"fastlbbnn": json.dumps(about)})
        except SafetensorError as error:  # its words for what else is an OSError
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code) if number else str(error), str(temporary)) from error


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> int:
    """A checksum of words, names and bytes: it finds a bit that flipped on a disk or on the way."""
    found = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        found = zlib.crc32(name.encode(), found)
        # In whole bytes, which numpy knows of every dtype.
        found = zlib.crc32(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _read(path: Path, kind: str, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("fastlbbnn", "{}"))
            if not isinstance(about, dict) or about.get("kind") != kind:
                raise ValueError(f"it is not a {kind} of fastlbbnn")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if about.pop("checksum", None) != _checksum(tensors, about):
            raise ValueError("its contents are not those of its checksum")
    except FileNotFoundError:
        raise
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; {remedy}") from error
    return tensors, about


def save_network(path: Path, network: nn.Module, **about: Any) -> None:
    """The network, with the parameters of the likelihood that it states."""
    _write(path, network.state_dict(), {"kind": "network", **about})


def load_network(path: Path, network: nn.Module) -> dict[str, Any]:
    """Fill ``network``; returns what was said about it."""
    tensors, about = _read(path, "network", _REMEDY)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not fit the network that run.json describes: {reason}") from error
    return about


class HasState(Protocol):
    """An optimiser, as far as a checkpoint is concerned."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class Position(TypedDict):
    """Where a run stands."""

    #: Index of the stage, and the epoch that it began after.
    stage: int
    stage_start: int
    #: Epochs of the whole run, and rows of the history.
    epoch: int
    rows: int


def save_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: HasState,
    generator: torch.Generator,
    position: Position,
    pruning: nn.Module | None = None,
) -> None:
    tensors = {_MODEL + name: t for name, t in network.state_dict().items()}
    if pruning is not None:
        tensors |= {_PRUNING + name: t for name, t in pruning.state_dict().items()}
    # Of the optimiser: tensors, and what JSON holds (a momentum that there is none of yet, a count).
    plain: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{_OPTIMIZER}{index}.{name}"] = value
            else:
                plain[f"{index}.{name}"] = value
    tensors[_RANDOM + "training"] = generator.get_state()
    tensors[_RANDOM + "torch"] = torch.get_rng_state()
    if any(p.is_cuda for p in network.parameters()):
        tensors[_RANDOM + "cuda"] = torch.cuda.get_rng_state()
    _write(path, tensors, {"kind": "checkpoint", "position": position, "optimizer": plain})


class Checkpoint:
    """A checkpoint that was read; ``restore`` puts it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors, about = _read(path, "checkpoint", _REMEDY)
        position = about.get("position")
        wrong = wrong_field(position, Position) if isinstance(position, dict) else "it has no position"
        if wrong is not None:
            raise ValueError(f"{path} is damaged: {wrong}; {_REMEDY}")
        self.position: Position = position  # type: ignore[assignment]
        self._plain = about.get("optimizer", {})

    def restore_network(self, network: nn.Module) -> None:
        with self._fits():
            network.load_state_dict(self._part(_MODEL))

    def restore(
        self,
        optimizer: HasState,
        generator: torch.Generator,
        pruning: nn.Module | None = None,
    ) -> None:
        state: dict[int, dict[str, Any]] = {}
        for name, value in {**self._part(_OPTIMIZER), **self._plain}.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        with self._fits():
            if pruning is not None:
                pruning.load_state_dict(self._part(_PRUNING))
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
            generator.set_state(self._tensors[_RANDOM + "training"])
            torch.set_rng_state(self._tensors[_RANDOM + "torch"])
            if _RANDOM + "cuda" in self._tensors and torch.cuda.is_available():
                torch.cuda.set_rng_state(self._tensors[_RANDOM + "cuda"])

    @contextmanager
    def _fits(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{self.path} does not fit the run beside it: {reason}; {_REMEDY}") from error

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t for n, t in self._tensors.items() if n.startswith(prefix)}


class CheckpointClock:
    """When the next checkpoint is due: within a second or so at first, then ever more rarely.

    The time between two doubles up to half a minute, and is never less than twenty times what the last one
    took to write: checkpoints cost a run at most a twentieth of its time.
    """

    FIRST, LONGEST, COST = 1.0, 30.0, 20.0

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last, self._gap = now(), self.FIRST

    def due(self) -> bool:
        return self._now() - self._last >= self._gap

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around the writing of a checkpoint."""
        start = self._now()
        yield
        self._last = self._now()
        self._gap = max(min(2.0 * self._gap, self.LONGEST), self.COST * (self._last - start))
