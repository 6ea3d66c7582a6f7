"""Arrays that are too large to exist: a kernel sees all of them and touches a few pages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .errors import PtxError

PAGE = 4096  # bytes


class Virtual:
    """``size`` elements whose values, until a kernel writes them, are ``fill(indices)``."""

    def __init__(
        self, size: int, dtype: np.dtype | type, fill: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self.size, self.dtype, self.fill = size, np.dtype(dtype), fill
        self.nbytes = size * self.dtype.itemsize
        self.pages: dict[int, np.ndarray] = {}  # touched so far, as bytes

    def page(self, number: int) -> tuple[np.ndarray, int]:
        """The bytes of a page, and how many of them are within the array."""
        inside = min(PAGE, self.nbytes - number * PAGE)
        if number not in self.pages:
            count = PAGE // self.dtype.itemsize
            first = number * count
            values = np.asarray(self.fill(first + np.arange(count, dtype=np.int64)), self.dtype)
            self.pages[number] = values.view(np.uint8).copy()
        return self.pages[number], inside

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Values at flat indices, all on pages that were touched."""
        count = PAGE // self.dtype.itemsize
        numbers, within = np.asarray(indices, np.int64) // count, np.asarray(indices) % count
        found = np.empty(numbers.shape, self.dtype)
        for number in np.unique(numbers):
            if number not in self.pages:
                raise PtxError(f"nothing has touched element {number * count} and those after it")
            here = numbers == number
            found[here] = self.pages[number].view(self.dtype)[within[here]]
        return found
