"""What a backend says of itself, so that nothing else has to know it by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ... import reference
from ...reference.noise import Stream


class BackendFailure(RuntimeError):
    """What a backend needs beside itself (a compiler, a driver) failed: another backend can still compute."""


class Backend:
    """One implementation of the operators.

    A backend of your own gives ``functions`` of what it computes, with the arguments and results of the
    reference (``fastlbbnn.ops.dispatch.Op``), and is registered with

        fastlbbnn.ops.backends.BACKENDS.register("mine", Mine())

    Everything that it has no function for is computed by the reference.
    """

    #: Its name in ``backend=...``; a line that says what it is.
    name: str = ""
    describes: str = ""
    #: Which of the library's own fused operators it implements; see ``fastlbbnn::...`` in ``torch.ops``.
    fused: frozenset[str] = frozenset()
    #: Functions of its own, by the name of the operator.
    functions: Mapping[str, Callable[..., Any]] = {}
    #: Whether a forward pass keeps its draws for the backward one.
    keeps_draws: bool = False
    #: Whether a parameter that is not finite makes it raise; else results come out as NaN.
    raises_on_nan: bool = True

    def unavailable(self) -> str | None:
        """Why it cannot run on this machine at all and what to do, or None."""
        return None

    def refuses(self, device: str, dtype: torch.dtype) -> str | None:
        """Why it cannot serve parameters of this device type and dtype, or None."""
        raise NotImplementedError

    def refuses_device(self, device: torch.device) -> str | None:
        """Why it cannot serve this one device of a type that it serves, or None."""
        return None

    def computes_in(self, x: torch.dtype, parameters: torch.dtype) -> torch.dtype:
        """What inputs of dtype ``x`` are converted to first; the outputs are converted back."""
        return x

    def normals(self, seed: Tensor, stream: Stream, rows: int, cols: int) -> Tensor:
        """Standard normals ``[rows, cols]`` of a stream, in float32."""
        return reference.normals(seed, stream, 0, rows, cols)

    def logistics(self, seed: Tensor, rows: int, cols: int) -> Tensor:
        """What gates compare their logits with, ``[rows, cols]``, in float32."""
        return reference.gate_logistics(seed, 0, rows, cols)

    def __repr__(self) -> str:
        return f"<backend {self.name!r}: {self.describes}>"
