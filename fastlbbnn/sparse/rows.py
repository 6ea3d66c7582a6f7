"""From what a caller has to the float32 inputs of a network."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..data.preparation import Preparation


def is_tensor(x: Any) -> bool:
    """Whether x is torch's; False where torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


class Rows:
    """Makes inputs ``[batch, in_features]`` for a network, contiguous and float32."""

    def __init__(self, in_features: int, preparation: Preparation | None) -> None:
        self.in_features = in_features
        self.preparation = preparation
        as_is = preparation is None or preparation.is_as_is
        #: Whether inputs are the raw values themselves, and how many there are in a raw row.
        self._as_is = as_is
        self._columns = in_features if preparation is None else len(preparation.columns)

    def of(self, rows: Any, raw: bool, device: object | None = None) -> tuple[Any, tuple[int, ...] | None]:
        """Inputs, an array or (for a tensor) a tensor, and the axes in front; None for ``[batch]``."""
        if is_tensor(rows):
            return self._of_tensor(rows, raw, device is not None)
        if device is not None:
            raise TypeError(f"rows are a {type(rows).__name__}; expected a tensor on the model's device")
        if isinstance(rows, np.ndarray) or not raw or self.preparation is None:
            return self._of_array(rows, raw)
        return self.preparation.inputs(rows), None

    def _of_tensor(self, x: Any, raw: bool, on_device: bool) -> tuple[Any, tuple[int, ...] | None]:
        import torch

        shape = x.shape
        # What needs nothing done, by the shortest way: the rest takes as long as a small network.
        if (
            len(shape) == 2 and shape[1] == self.in_features and (self._as_is or not raw)
            and x.dtype is torch.float32 and x.is_contiguous() and not x.requires_grad
            and (on_device or x.is_cpu)
        ):  # fmt: skip
            return x, None
        if not (on_device or x.is_cpu):
            raise ValueError(
                f"x is on {x.device}; expected the CPU (move it with .cpu(), or the model with .on('cuda'))"
            )
        columns = self._columns if raw else self.in_features
        if len(shape) == 0 or shape[-1] != columns:
            raise ValueError(f"x is {list(shape)}; expected a last axis of {columns}")
        if x.requires_grad:
            x = x.detach()
        if len(shape) != 2:
            x = x.reshape(-1, columns)
        if raw and not self._as_is:
            inputs = self._prepared(x.cpu().double().numpy())
            x = torch.from_numpy(inputs).to(x.device)
        elif x.dtype is not torch.float32:
            if x.is_complex():
                raise TypeError(f"x is {x.dtype}; expected real numbers")
            wide = x
            x = x.to(torch.float32)
            if wide.dtype is torch.float64 and bool((x.isinf() & wide.isfinite()).any()):
                raise ValueError("x holds float64 numbers that are too large for float32")
        if not x.is_contiguous():
            x = x.contiguous()
        return x, None if len(shape) == 2 else tuple(shape[:-1])

    def _of_array(self, rows: Any, raw: bool) -> tuple[Any, tuple[int, ...] | None]:
        x = np.asarray(rows)
        columns = self._columns if raw else self.in_features
        if x.dtype.kind not in "biuf":
            raise TypeError(f"x is {x.dtype}; expected real numbers [..., {columns}]")
        if x.ndim == 0 or x.shape[-1] != columns:
            raise ValueError(f"x is {list(x.shape)}; expected [batch, {columns}], or other axes in front")
        shape = None if x.ndim == 2 else x.shape[:-1]
        x = x.reshape(-1, columns) if x.ndim != 2 else x
        if raw and not self._as_is:
            return self._prepared(x.astype(np.float64)), shape
        if x.dtype != np.float32:
            with np.errstate(over="ignore"):
                single = x.astype(np.float32)
            if (np.isinf(single) & np.isfinite(x)).any():
                raise ValueError(f"x holds {x.dtype} numbers that are too large for float32")
            x = single
        return np.ascontiguousarray(x), shape

    def _prepared(self, matrix: Any) -> Any:
        assert self.preparation is not None
        return self.preparation.inputs(matrix)
