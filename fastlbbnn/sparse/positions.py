"""Where weights are, as a file keeps them: gaps between rising positions, in one or two bytes each.

The largest value of the dtype means: this far, and no weight yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def _encode_gaps(positions: NDArray[np.int64], dtype: type[np.unsignedinteger]) -> NDArray[Any]:
    escape = np.iinfo(dtype).max
    gaps = np.diff(positions, prepend=np.int64(-1)) - 1
    steps, rest = gaps // escape, gaps % escape
    ends = np.cumsum(steps + 1)
    out = np.full(int(ends[-1]) if ends.size else 0, escape, dtype)
    out[ends - 1] = rest
    return out


def encode_positions(positions: NDArray[np.int64]) -> NDArray[Any]:
    """Gaps in whichever of one and two bytes is shorter."""
    narrow, wide = (_encode_gaps(positions, d) for d in (np.uint8, np.uint16))
    return narrow if narrow.nbytes <= wide.nbytes else wide


def decode_positions(name: str, gaps: NDArray[Any], count: int, limit: int) -> NDArray[np.int64]:
    """The ``count`` rising positions below ``limit``."""
    if gaps.dtype not in (np.uint8, np.uint16) or gaps.ndim != 1:
        raise ValueError(f"{name} is {gaps.dtype} {list(gaps.shape)}; expected a vector of gaps")
    weights = gaps != np.iinfo(gaps.dtype).max
    if (found := int(weights.sum())) != count:
        raise ValueError(f"{name} places {found} weights; expected {count}")
    reached = np.cumsum(gaps, dtype=np.int64)
    if reached.size and int(reached[-1]) + count > limit:
        raise ValueError(f"{name} places weights beyond the layer's {limit}")
    return reached[weights] + np.arange(count)
