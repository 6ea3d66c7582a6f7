"""What a pass over a network needs from numpy or torch: memory and dense products."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

#: A numpy array or a torch tensor, float32 by rows.
Array = Any
Step = Callable[[Array], Array]
#: The library's pass: addresses of x and y, and the batch.
Run = Callable[[int, int, int], None]


class Arrays(Protocol):
    """One kind of arrays."""

    name: str

    def threads(self) -> int:
        """How many a pass may use."""

    def to_numpy(self, x: Array) -> NDArray[np.float32]:
        """The same memory."""

    def from_numpy(self, x: NDArray[Any]) -> Array:
        """The same memory."""

    def stack(self, parts: Sequence[Array]) -> Array: ...

    def library_step(self, run: Run, outputs: int, samples: int | None = None) -> Step:
        """A step that calls the library: [batch, inputs] -> [batch, outputs], with samples in front."""

    def affine(
        self, weight: NDArray[np.float32], bias: NDArray[np.float32], relu: bool,
        inputs: NDArray[np.int32] | None = None,
    ) -> Step:
        """A step relu(x W' + b); ``inputs``: columns of x that it takes, None: all."""


class NumpyArrays:
    name = "numpy"

    def threads(self) -> int:
        """One for each processor that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def to_numpy(self, x: Array) -> NDArray[np.float32]:
        return x

    def from_numpy(self, x: NDArray[Any]) -> Array:
        return x

    def stack(self, parts: Sequence[Array]) -> Array:
        return np.stack(parts)

    def library_step(self, run: Run, outputs: int, samples: int | None = None) -> Step:
        front = () if samples is None else (samples,)

        def step(x: Array) -> Array:
            y = np.empty((*front, x.shape[0], outputs), np.float32)
            run(x.ctypes.data, x.shape[0], y.ctypes.data)
            return y

        return step

    def affine(
        self, weight: NDArray[np.float32], bias: NDArray[np.float32], relu: bool,
        inputs: NDArray[np.int32] | None = None,
    ) -> Step:
        turned = weight.T

        def step(x: Array) -> Array:
            y = (x if inputs is None else x[:, inputs]) @ turned
            y += bias
            return np.maximum(y, np.float32(0.0), out=y) if relu else y

        return step


NUMPY = NumpyArrays()
