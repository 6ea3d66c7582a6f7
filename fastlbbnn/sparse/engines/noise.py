"""The noise of chosen weights, in numpy: the stream that ``fastlbbnn.reference.noise`` defines, bit for bit.

Noise is a function of (seed, stream, sample, row, column), so that of the weights which a selection kept is
computed for those alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: As reference.noise.Stream.
WEIGHT, BIAS = 0, 2

_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
#: Weights whose noise is computed at once.
_AT_ONCE = 1 << 18


def _f(text: str) -> np.float32:
    return np.float32(float.fromhex(text))


_LOG = tuple(map(_f, (
    "0x1.e964cap-4", "-0x1.7ca95cp-3", "0x1.a2cd1cp-3", "-0x1.fe5810p-3", "0x1.553054p-2", "-0x1.00011cp-1",
)))  # fmt: skip
_LOG2 = _f("0x1.62e430p-1")
_SINE = tuple(map(_f, ("0x1.3f4f32p-4", "-0x1.4aa698p-1", "0x1.921f90p+0")))
_COSINE = tuple(map(_f, ("-0x1.4ea120p-6", "0x1.03b130p-2", "-0x1.3bd3a0p+0", "0x1p+0")))


def normals_at(
    seed: int, stream: int, sample: int, rows: NDArray[Any], columns: NDArray[Any]
) -> NDArray[np.float32]:
    """Standard normals of the places (rows[i], columns[i]), float32."""
    out = np.empty(len(rows), np.float32)
    for first in range(0, len(rows), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        out[part] = _normals(seed, stream, sample, rows[part], columns[part])
    return out


def _normals(
    seed: int, stream: int, sample: int, rows: NDArray[Any], columns: NDArray[Any]
) -> NDArray[np.float32]:
    column = columns.astype(np.uint64)
    counter = [
        column >> np.uint64(2), rows.astype(np.uint64), np.full_like(column, stream),
        np.full_like(column, sample),
    ]  # fmt: skip
    words = _philox(counter, seed)
    # Columns 4g and 4g + 1 make two normals of the first two words, 4g + 2 and 4g + 3 of the others.
    late = (column & np.uint64(2)) != 0
    radius_word, angle_word = np.where(late, words[2], words[0]), np.where(late, words[3], words[1])
    first, second = _box_muller(radius_word, angle_word)
    return np.where(column & np.uint64(1), second, first)


def _philox(counter: list[NDArray[np.uint64]], seed: int) -> list[NDArray[np.uint64]]:
    """Ten rounds of Philox4x32."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0), p1 & _LOW32, (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1), p0 & _LOW32
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def _log(x: NDArray[np.float32], exponent_bias: int) -> NDArray[np.float32]:
    """log(x) - exponent_bias * log(2) for positive x, by exponent and polynomial."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    t = (bits - (exponent << 23)).view(np.float32) - np.float32(1.0)
    n = exponent.astype(np.float32) - np.float32(exponent_bias)
    p = np.full_like(t, _LOG[0])
    for coefficient in _LOG[1:]:
        p = p * t + coefficient
    return n * _LOG2 + ((t * t) * p + t)


def _box_muller(
    radius_word: NDArray[np.uint64], angle_word: NDArray[np.uint64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two independent standard normals from the upper 22 bits of two words each."""
    v = ((radius_word >> np.uint64(9)) | np.uint64(1)).astype(np.float32)
    radius = np.sqrt((_log(v, 23) * np.float32(-2.0)).astype(np.float64)).astype(np.float32)
    turned = (((angle_word << np.uint64(2)) & _LOW32) >> np.uint64(11)) | np.uint64(1)
    s = (turned.astype(np.int64) - (1 << 20)).astype(np.float32) * np.float32(2.0**-21)
    s2 = s * s
    p, q = np.full_like(s, _SINE[0]), np.full_like(s, _COSINE[0])
    for coefficient in _SINE[1:]:
        p = p * s2 + coefficient
    for coefficient in _COSINE[1:]:
        q = q * s2 + coefficient
    across, along = (p * s) * radius, q * radius
    along = np.where((angle_word >> np.uint64(31)) != 0, -along, along)
    exchange = ((angle_word >> np.uint64(30)) & np.uint64(1)) != 0
    return np.where(exchange, across, along), np.where(exchange, along, across)
