"""Passes over tensors, with torch's threads and torch's dense products."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ...ops.backends import cpp as _extension
from . import native
from .arrays import Run, Step


@functools.cache
def borrow_torch_threads() -> None:
    """Let the library compute with torch's threads: two sets of threads would hinder each other."""
    if _extension.load() is None and not native.unavailable():
        lender = ctypes.CDLL(str(_extension.library_path())).fastlbbnn_run_parallel
        native.library().fl_sparse_borrow_threads(ctypes.cast(lender, ctypes.c_void_p))


class TorchArrays:
    name = "torch"

    def threads(self) -> int:
        return torch.get_num_threads()

    def to_numpy(self, x: Tensor) -> NDArray[np.float32]:
        return x.numpy()

    def from_numpy(self, x: NDArray) -> Tensor:
        return torch.from_numpy(x)

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts))

    def library_step(self, run: Run, outputs: int, samples: int | None = None) -> Step:
        if samples is None:

            def step(x: Tensor) -> Tensor:
                batch = x.shape[0]
                y = x.new_empty(batch, outputs)
                run(x.data_ptr(), batch, y.data_ptr())
                return y
        else:

            def step(x: Tensor) -> Tensor:
                batch = x.shape[0]
                y = x.new_empty((samples, batch, outputs))
                run(x.data_ptr(), batch, y.data_ptr())
                return y

        return step

    def affine(
        self, weight: NDArray[np.float32], bias: NDArray[np.float32], relu: bool,
        inputs: NDArray[np.int32] | None = None,
    ) -> Step:
        w, b = torch.from_numpy(weight), torch.from_numpy(bias)
        if inputs is not None:
            chosen = torch.from_numpy(inputs)
            if relu:
                return lambda x: F.linear(x.index_select(1, chosen), w, b).relu_()
            return lambda x: F.linear(x.index_select(1, chosen), w, b)
        if relu:
            return lambda x: F.linear(x, w, b).relu_()
        return lambda x: F.linear(x, w, b)


TORCH = TorchArrays()
