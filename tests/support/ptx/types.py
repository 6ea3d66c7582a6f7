"""PTX types as numpy sees them, and how values of one become values of another."""

from __future__ import annotations

import struct

import numpy as np

from .errors import PtxError

#: Type of an instruction -> numpy type in which its values are computed. bfloat16 and pairs of
#: halves have none and stay bits.
NUMPY = {
    "pred": np.bool_,
    "u8": np.uint8,
    "s8": np.int8,
    "b8": np.uint8,
    "u16": np.uint16,
    "s16": np.int16,
    "b16": np.uint16,
    "f16": np.float16,
    "bf16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "f32": np.float32,
    "tf32": np.uint32,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "f64": np.float64,
}
UNSIGNED = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def bits(type_name: str) -> int:
    return 1 if type_name == "pred" else np.dtype(NUMPY[type_name]).itemsize * 8


def is_float(type_name: str) -> bool:
    return type_name in ("f16", "bf16", "f32", "f64")


def is_signed(type_name: str) -> bool:
    return type_name[0] == "s"


def literal(text: str, type_name: str) -> np.ndarray:
    """An immediate as an array of one value, which spreads over all threads."""
    dtype = NUMPY[type_name]
    if text[:2] in ("0f", "0F"):
        raw, width = struct.pack("<I", int(text[2:], 16)), np.uint32
    elif text[:2] in ("0d", "0D"):
        raw, width = struct.pack("<Q", int(text[2:], 16)), np.uint64
    else:
        value = int(text.rstrip("U"), 0) if "." not in text else float(text)
        if type_name == "pred":
            return np.array([bool(value)])
        if type_name in ("f16", "f32", "f64"):
            return np.array([value], dtype)
        mask = (1 << bits(type_name)) - 1
        return np.array([int(value) & mask], UNSIGNED[bits(type_name)]).view(dtype)
    array = np.frombuffer(raw, width)
    if array.itemsize * 8 != bits(type_name):
        raise PtxError(f"literal {text} for an operand of type {type_name}")
    return array.view(dtype)


def bf16_to_f32(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(value: np.ndarray) -> np.ndarray:
    """To the nearest, ties to even; NaN stays NaN."""
    raw = np.ascontiguousarray(value, np.float32).view(np.uint32)
    rounded = raw + np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))
    kept = np.where(np.isnan(value), np.uint32(0x7FFF0000), rounded)
    return (kept >> np.uint32(16)).astype(np.uint16)


def f32_to_tf32(value: np.ndarray) -> np.ndarray:
    """cvt.rna: ten bits of mantissa, to the nearest, ties away from zero; as float32 bits."""
    raw = value.view(np.uint32)
    rounded = (raw + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(value), rounded, raw & np.uint32(0xFFFFE000))


def flush(value: np.ndarray) -> np.ndarray:
    """Subnormal float32 to a zero of the same sign (.ftz)."""
    if value.dtype != np.float32:
        return value
    tiny = np.abs(value) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), value), value)


def _fma_to_odd(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c of float32 in float64, rounded to odd.

    The product is exact in float64. The rounding error of the sum, found by Knuth's TwoSum, says
    whether the exact sum lies beside the rounded one; then its last bit is made one. Rounding such
    a number to a format that is two bits shorter or more gives the correctly rounded result (Boldo
    & Melquiond, 2008).
    """
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    even = (total.view(np.int64) & 1) == 0
    adjust = even & (error != 0) & np.isfinite(total) & np.isfinite(error)
    if adjust.any():
        towards = np.where(error > 0, np.inf, -np.inf)
        total = np.where(adjust, np.nextafter(total, towards), total)
    return total


def fma_f32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c with one rounding."""
    return _fma_to_odd(a, b, c).astype(np.float32)


def fma_bf16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The same for bfloat16 bits: to odd once more, in float32, then to the nearest."""
    total = _fma_to_odd(*(bf16_to_f32(v) for v in np.broadcast_arrays(a, b, c)))
    narrow = total.astype(np.float32)
    inexact = np.isfinite(narrow) & (narrow.astype(np.float64) != total)
    too_far = inexact & (np.abs(narrow.astype(np.float64)) > np.abs(total))
    narrow = np.where(too_far, np.nextafter(narrow, np.float32(0)), narrow)
    return f32_to_bf16((narrow.view(np.uint32) | inexact).view(np.float32))
