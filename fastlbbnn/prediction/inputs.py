"""What predictions take as inputs, made into batches of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..inference.draws import works_on_last_axis
from ..inference.likelihoods import check_not_nan

_EXPECTED = "expected a tensor, a numpy array, a table of numbers or a DataLoader"


class Inputs:
    """Inputs of a model, batch by batch."""

    def __init__(self, model: nn.Module, x: Any) -> None:
        self._parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
        # A network of linear layers takes numbers; another may have an embedding, which takes integers.
        self._floats = works_on_last_axis(model)
        self._loader = x if isinstance(x, DataLoader) else None
        self._whole = None if self._loader is not None else self._tensor(x)
        if self._whole is not None:
            check_not_nan("x", self._whole)
        self.device = torch.device("cpu") if self._parameter is None else self._parameter.device
        if self._whole is not None:
            self.device = self._whole.device

    def batches(self, size: int) -> Iterator[tuple[Tensor, slice]]:
        """Batches, and which rows they are. Without observations there is one empty batch.

        Those of a loader stay as they are.
        """
        if self._whole is not None:
            for begin in range(0, max(len(self._whole), 1), size):
                rows = slice(begin, begin + size)
                yield self._whole[rows], rows
            return
        assert self._loader is not None
        begin = 0
        for item in self._loader:
            first = item[0] if isinstance(item, tuple | list) else item
            batch = self._tensor(first)
            if batch.device != self.device:
                batch = batch.to(self.device)
            check_not_nan(f"x (from row {begin} of the loader)", batch)
            yield batch, slice(begin, begin + len(batch))
            begin += len(batch)
        if begin == 0:
            raise ValueError("the DataLoader gave no batch; expected at least one")

    def fit_into(self, size: int) -> bool:
        """Whether all rows are one batch."""
        return self._whole is not None and len(self._whole) <= size

    def _tensor(self, x: Any) -> Tensor:
        if isinstance(x, Tensor):
            if x.dim() == 0:
                raise ValueError("x is a single number; expected observations along the first axis")
            return x
        values = _array(x)
        if values.ndim == 0:
            raise ValueError("x is a single number; expected observations along the first axis")
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self._parameter is None:
            return tensor
        if tensor.is_floating_point() or self._floats:
            return tensor.to(device=self._parameter.device, dtype=self._parameter.dtype)
        return tensor.to(device=self._parameter.device, dtype=torch.int64)


def _array(x: Any) -> np.ndarray:
    """A numeric numpy array of an array, a data frame or nested lists of numbers."""
    if isinstance(x, str | bytes | Mapping) or not hasattr(x, "__len__"):
        raise TypeError(f"x is a {type(x).__name__}; {_EXPECTED}")
    if isinstance(x, list | tuple) and any(isinstance(item, Tensor) for item in x):
        raise TypeError(f"x is a {type(x).__name__} of tensors; {_EXPECTED} (torch.stack or torch.cat them)")
    try:
        values = x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)
    except ValueError as error:
        raise TypeError(f"x is a {type(x).__name__} of unequal rows ({error}); {_EXPECTED}") from error
    if values.dtype == object:
        values = _numbers(x, values)
    if values.dtype.kind not in "fiub":
        raise TypeError(
            f"x holds {values.dtype}, not numbers; encode such columns first (a data set's `preparation` "
            "does it for the tables that it was made from)"
        )
    return values


def _numbers(x: Any, values: np.ndarray) -> np.ndarray:
    """Columns of several types as numbers; TypeError that names those which hold something else."""
    columns = getattr(x, "columns", None)
    if columns is not None and values.ndim == 2:
        wrong = []
        for i, name in enumerate(columns):
            try:
                values[:, i].astype(np.float64)
            except (TypeError, ValueError):
                wrong.append(str(name))
        if wrong:
            raise TypeError(
                f"the columns {', '.join(wrong)} of x hold no numbers; encode or drop them (a data set's "
                "`preparation` does it for the tables that it was made from)"
            )
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"x is a {type(x).__name__} that holds no numbers ({error}); {_EXPECTED}") from error
