"""Collects the KLs that layers compute on the way, so that the objective need not ask again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Recorded:
    """What layers left in one forward pass."""

    def __init__(self) -> None:
        #: Some layers and their five sums, ``[layers, 5]``.
        self.entries: list[tuple[Sequence[nn.Module], Tensor]] = []
        #: The layers of all entries.
        self.layers: set[nn.Module] = set()
        #: Layers and their KLs in nats. One that left sums may leave the KL of something else here.
        self.kls: dict[nn.Module, Tensor] = {}


_recording: Recorded | None = None


class record_sums:
    """Within this context, sampling layers leave their five sums or KLs, once a layer."""

    def __enter__(self) -> Recorded:
        global _recording
        self._outer = _recording
        _recording = Recorded()
        return _recording

    def __exit__(self, *_: object) -> None:
        global _recording
        _recording = self._outer


def is_recording() -> bool:
    """Whether anybody wants to know."""
    return _recording is not None


def leave_sums(layers: Sequence[nn.Module], sums: Tensor) -> None:
    """``sums``: [5] of one layer or [layers, 5]."""
    if _recording is None:
        return
    # A layer that is used twice in one pass has one KL.
    fresh = [i for i, layer in enumerate(layers) if layer not in _recording.layers]
    if len(fresh) == len(layers):
        _recording.entries.append((layers, sums))
    else:
        _recording.entries += [((layers[i],), sums.view(-1, 5)[i]) for i in fresh]
    _recording.layers.update(layers)


def leave_kl(layer: nn.Module, kl: Tensor) -> None:
    """``kl``: a scalar, in nats. Only a layer's first in a pass counts."""
    if _recording is not None:
        _recording.kls.setdefault(layer, kl)
