"""Moves and conversions between types."""

from __future__ import annotations

import numpy as np

from . import types
from .compiler import Compiler, Step, handles, items, only, unknown, value_type
from .parser import Immediate, Instruction, Vector


@handles("mov")
def move(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction)
    destination, source = instruction.operands
    kind = value_type(instruction)
    if isinstance(source, Vector):
        return _pack(compiler, destination, source, kind)
    if isinstance(destination, Vector):
        return _unpack(compiler, destination, source, kind)
    if isinstance(source, Immediate) and kind[0] == "b" and source.text[:2] in ("0f", "0d"):
        kind = "f" + kind[1:]  # the bits of a floating-point literal
    return compiler.elementwise(instruction, lambda a: a, (kind,), kind)


def _pack(compiler: Compiler, destination, source: Vector, kind: str) -> Step:
    """The first item becomes the lowest bits."""
    part = types.bits(kind) // len(source.items)
    readers = [compiler.reader(i, f"b{part}") for i in source.items]
    whole = types.UNSIGNED[types.bits(kind)]
    write = compiler.writer(destination, f"b{types.bits(kind)}")

    def step(wave, mask):
        value = np.zeros(wave.threads, whole)
        for i, reader in enumerate(readers):
            value |= reader(wave).astype(whole) << whole(part * i)
        write(wave, value, mask)

    return step


def _unpack(compiler: Compiler, destination: Vector, source, kind: str) -> Step:
    part = types.bits(kind) // len(destination.items)
    writers = [compiler.writer(i, f"b{part}") for i in items(destination)]
    read = compiler.reader(source, f"b{types.bits(kind)}")
    whole, narrow = types.UNSIGNED[types.bits(kind)], types.UNSIGNED[part]

    def step(wave, mask):
        value = read(wave)
        for i, write in enumerate(writers):
            write(wave, (value >> whole(part * i)).astype(narrow), mask)

    return step


@handles("cvt")
def convert(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "rn", "rz", "rna", "rni", "rzi", "rmi", "rpi", "ftz", "satfinite")
    named = [m for m in instruction.modifiers if m in types.NUMPY]
    if len(named) != 2 or "satfinite" in instruction.modifiers:
        raise unknown(instruction)
    to, origin = named
    if to in ("f16x2", "bf16x2"):
        narrow = _to_half if to == "f16x2" else types.f32_to_bf16
        if origin != "f32" or "rn" not in instruction.modifiers:
            raise unknown(instruction)

        # d = {a in the upper half, b in the lower}
        def pair(a, b):
            high, low = narrow(a).astype(np.uint32), narrow(b).astype(np.uint32)
            return (high << np.uint32(16)) | low

        return compiler.elementwise(instruction, pair, ("f32", "f32"), to)
    compute = _conversion(instruction, to, origin)
    return compiler.elementwise(instruction, compute, (origin,), to)


def _to_half(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float16).view(np.uint16)


#: Rounding of a float to an integral value.
_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _conversion(instruction: Instruction, to: str, origin: str):
    rounding = next(
        (m for m in instruction.modifiers if m in ("rn", "rz", "rna", *_INTEGRAL)), None
    )
    if (to, origin) == ("tf32", "f32") and rounding == "rna":
        return types.f32_to_tf32
    if origin == "bf16":
        if to != "f32":
            raise unknown(instruction)
        return types.bf16_to_f32
    if to == "bf16":
        if (origin, rounding) != ("f32", "rn"):
            raise unknown(instruction)
        return types.f32_to_bf16
    if types.is_float(origin) and types.is_float(to):
        if rounding in _INTEGRAL and origin == to:
            return _INTEGRAL[rounding]
        if rounding not in (None, "rn"):
            raise unknown(instruction)
        return lambda a: a.astype(types.NUMPY[to])
    if types.is_float(origin):
        if rounding not in _INTEGRAL:
            raise unknown(instruction)
        return lambda a: _float_to_integer(_INTEGRAL[rounding](a), to)
    if types.is_float(to) and rounding != "rn":
        raise unknown(instruction)
    return lambda a: a.astype(types.NUMPY[to])


def _float_to_integer(value: np.ndarray, to: str) -> np.ndarray:
    """Out of range: the nearest integer that fits; NaN: zero."""
    limits = np.iinfo(types.NUMPY[to])
    value = np.where(np.isnan(value), 0.0, value).astype(np.float64)
    inside = (value >= float(limits.min)) & (value < float(limits.max) + 1.0)
    exact = np.where(inside, value, 0.0).astype(types.NUMPY[to])
    return np.where(inside, exact, np.where(value > 0, limits.max, limits.min)).astype(
        types.NUMPY[to]
    )
