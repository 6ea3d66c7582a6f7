"""Integer, logical and floating-point instructions, comparisons and selections."""

from __future__ import annotations

import numpy as np

from . import types
from .compiler import Compiler, Step, handles, only, unknown, value_type
from .errors import PtxError
from .parser import Immediate, Instruction

_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _rounds_on_its_own(instruction: Instruction) -> None:
    """Without .rn the assembler may fuse multiplications and additions: no one result is right."""
    if value_type(instruction) not in ("f32", "f64"):
        raise unknown(instruction)
    if "rn" not in instruction.modifiers:
        raise PtxError(f"the assembler may fuse this, its rounding is open: {instruction.text}")


def _simple(table: dict[str, object]):
    """Handlers of opcodes that are one numpy function of operands of one type."""

    def handler(compiler: Compiler, instruction: Instruction) -> Step:
        only(instruction, "rn", "ftz", "lo")
        kind = value_type(instruction)
        if types.is_float(kind):
            _rounds_on_its_own(instruction)
        inputs = (kind,) * (len(instruction.operands) - 1)
        return compiler.elementwise(instruction, table[instruction.opcode], inputs, kind)

    return handler


_ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}
handles(*_ARITHMETIC)(_simple(_ARITHMETIC))


@handles("neg", "abs")
def sign(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "ftz")
    kind = value_type(instruction)
    if kind in ("bf16", "bf16x2", "f16x2"):
        raise unknown(instruction)
    compute = np.negative if instruction.opcode == "neg" else np.abs
    return compiler.elementwise(instruction, compute, (kind,), kind)


@handles("mul")
def multiply(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "rn", "ftz", "lo", "hi", "wide")
    kind = value_type(instruction)
    if "wide" in instruction.modifiers:
        wide = types.NUMPY[_WIDE[kind]]
        return compiler.elementwise(
            instruction, lambda a, b: a.astype(wide) * b.astype(wide), (kind, kind), _WIDE[kind]
        )
    if "hi" in instruction.modifiers:
        return compiler.elementwise(instruction, _high_product(kind), (kind, kind), kind)
    if types.is_float(kind):
        _rounds_on_its_own(instruction)
    elif "lo" not in instruction.modifiers:
        raise unknown(instruction)
    return compiler.elementwise(instruction, np.multiply, (kind, kind), kind)


def _high_product(kind: str):
    """The upper half of a product; 64-bit ones by schoolbook multiplication of 32-bit halves."""
    if kind in _WIDE:
        wide, shift = types.NUMPY[_WIDE[kind]], types.bits(kind)
        return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> wide(shift)).astype(
            types.NUMPY[kind]
        )
    if kind != "u64":
        raise ValueError(f"mul.hi.{kind}")

    def high(a, b):
        low_bits, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        a0, a1, b0, b1 = a & low_bits, a >> half, b & low_bits, b >> half
        middle = a1 * b0 + ((a0 * b0) >> half)
        second = a0 * b1 + (middle & low_bits)
        return a1 * b1 + (middle >> half) + (second >> half)

    return high


@handles("mad")
def multiply_add(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "lo", "hi", "wide")
    kind = value_type(instruction)
    if "wide" in instruction.modifiers:
        wide = types.NUMPY[_WIDE[kind]]
        return compiler.elementwise(
            instruction,
            lambda a, b, c: a.astype(wide) * b.astype(wide) + c,
            (kind, kind, _WIDE[kind]),
            _WIDE[kind],
        )
    if "hi" in instruction.modifiers:
        high = _high_product(kind)
        return compiler.elementwise(instruction, lambda a, b, c: high(a, b) + c, (kind,) * 3, kind)
    if "lo" not in instruction.modifiers:
        raise unknown(instruction)
    return compiler.elementwise(instruction, lambda a, b, c: a * b + c, (kind,) * 3, kind)


@handles("fma")
def fused_multiply_add(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "rn", "ftz")
    kind = value_type(instruction)
    if "rn" not in instruction.modifiers or kind not in ("f32", "bf16", "bf16x2"):
        raise unknown(instruction)
    if kind == "bf16x2":
        return compiler.elementwise(instruction, _in_halves(types.fma_bf16), (kind,) * 3, kind)
    compute = types.fma_f32 if kind == "f32" else types.fma_bf16
    return compiler.elementwise(instruction, compute, (kind,) * 3, kind)


def _in_halves(compute):
    """An operation on 16 bits, for both halves of 32."""

    def both(*values):
        low = compute(*((v & np.uint32(0xFFFF)).astype(np.uint16) for v in values))
        high = compute(*((v >> np.uint32(16)).astype(np.uint16) for v in values))
        return (high.astype(np.uint32) << np.uint32(16)) | low

    return both


@handles("div", "rem")
def divide(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "rn", "full", "approx", "ftz")
    kind = value_type(instruction)
    if kind in ("f32", "f64"):
        if instruction.opcode == "rem":
            raise unknown(instruction)
        return compiler.elementwise(instruction, np.divide, (kind, kind), kind)
    if not types.is_signed(kind):
        compute = np.floor_divide if instruction.opcode == "div" else np.remainder
    else:
        # Towards zero, as in C; numpy's // goes down.
        def compute(a, b):
            wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
            q = np.sign(wide_a) * np.sign(wide_b) * (np.abs(wide_a) // np.abs(wide_b))
            return (q if instruction.opcode == "div" else wide_a - q * wide_b).astype(a.dtype)

    return compiler.elementwise(instruction, compute, (kind, kind), kind)


@handles("min", "max")
def extreme(compiler: Compiler, instruction: Instruction) -> Step:
    """The number, where one operand is NaN, unless .NaN asks for NaN; -0 is below +0."""
    only(instruction, "ftz", "NaN")
    kind, least = value_type(instruction), instruction.opcode == "min"
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        raise unknown(instruction)
    if not types.is_float(kind):
        return compiler.elementwise(
            instruction, np.minimum if least else np.maximum, (kind,) * 2, kind
        )
    with_nan = "NaN" in instruction.modifiers
    choose = {
        (True, True): np.minimum,
        (True, False): np.fmin,
        (False, True): np.maximum,
        (False, False): np.fmax,
    }[least, with_nan]
    unsigned = types.UNSIGNED[types.bits(kind)]

    def compute(a, b):
        a, b = np.broadcast_arrays(a, b)
        bits = (np.bitwise_or if least else np.bitwise_and)(
            np.ascontiguousarray(a).view(unsigned), np.ascontiguousarray(b).view(unsigned)
        )
        return np.where(a == b, bits.view(a.dtype), choose(a, b))

    return compiler.elementwise(instruction, compute, (kind, kind), kind)


#: In float64, rounded to float32 at the end.
_APPROXIMATE = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda a: 1.0 / a,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@handles(*_APPROXIMATE)
def transcendental(compiler: Compiler, instruction: Instruction) -> Step:
    """The float32 nearest to the exact value.

    For sqrt.rn and rcp.rn that is the specification (float64 has the digits that make two roundings
    harmless: 53 >= 2*24 + 2). Hardware's .approx may differ by an ulp or two.
    """
    only(instruction, "rn", "approx", "ftz")
    if value_type(instruction) != "f32":
        raise unknown(instruction)
    exact = _APPROXIMATE[instruction.opcode]
    return compiler.elementwise(
        instruction, lambda a: exact(a.astype(np.float64)).astype(np.float32), ("f32",), "f32"
    )


@handles("shl", "shr")
def shift(compiler: Compiler, instruction: Instruction) -> Step:
    """By the width or more: everything is shifted out (numpy would wrap around)."""
    only(instruction)
    kind = value_type(instruction)
    width, dtype = types.bits(kind), types.NUMPY[kind]
    if instruction.opcode == "shl":

        def compute(a, n):
            return np.where(n < width, a << (n % width).astype(dtype), dtype(0))
    else:

        def compute(a, n):
            # The signed shift by width - 1 leaves the sign, which is also right for more.
            limit = np.minimum(n, width - 1).astype(dtype)
            gone = np.zeros(1, dtype) if not types.is_signed(kind) else a >> dtype(width - 1)
            return np.where(n < width, a >> limit, gone)

    return compiler.elementwise(instruction, compute, (kind, "u32"), kind)


@handles("shf")
def funnel_shift(compiler: Compiler, instruction: Instruction) -> Step:
    """32 bits out of the 64 of {b, a}: a is the lower word."""
    only(instruction, "l", "r", "wrap", "clamp")
    left, wrap = "l" in instruction.modifiers, "wrap" in instruction.modifiers

    def compute(a, b, n):
        n = (n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))).astype(np.uint64)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        shifted = (both << n) >> np.uint64(32) if left else both >> n
        # Shifting left by 32 loses nothing: the lower word becomes the upper one.
        return (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return compiler.elementwise(instruction, compute, ("u32",) * 3, "u32")


@handles("bfe", "bfi")
def bit_field(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction)
    kind = value_type(instruction)
    if kind not in ("u32", "s32", "b32"):
        raise unknown(instruction)
    if instruction.opcode == "bfi":

        def insert(a, b, position, length):
            position, length = (v.astype(np.uint64) & np.uint64(0xFF) for v in (position, length))
            mask = ((np.uint64(1) << np.minimum(length, 32)) - np.uint64(1)) << np.minimum(
                position, 32
            )
            return (
                (b & ~mask) | ((a.astype(np.uint64) << np.minimum(position, 32)) & mask)
            ).astype(np.uint32)

        return compiler.elementwise(instruction, insert, ("u32",) * 4, "u32")

    def extract(a, position, length):
        position = (position & np.uint32(0xFF)).astype(np.int64)
        length = np.minimum((length & np.uint32(0xFF)).astype(np.int64), 63)
        field = (a.astype(np.int64) >> np.minimum(position, 63)) & ((np.int64(1) << length) - 1)
        if kind == "s32":
            # a is sign-extended, so bits beyond its 32 repeat the sign, as specified.
            top = np.where(length > 0, (field >> np.maximum(length - 1, 0)) & 1, 0)
            field = field - (top << length)
        return field.astype(types.NUMPY[kind])

    return compiler.elementwise(instruction, extract, (kind, "u32", "u32"), kind)


@handles("lop3")
def logic3(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction)
    *operands, table = instruction.operands
    assert isinstance(table, Immediate)
    lut = int(table.text.rstrip("U"), 0)

    def compute(a, b, c):
        result = np.zeros(1, np.uint32)
        for i in range(8):
            if lut >> i & 1:
                result = result | (
                    (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
                )
        return result

    shortened = Instruction(
        instruction.opcode, instruction.modifiers, tuple(operands), None, False, instruction.text
    )
    return compiler.elementwise(shortened, compute, ("b32",) * 3, "b32")


@handles("prmt")
def permute_bytes(compiler: Compiler, instruction: Instruction) -> Step:
    """Byte i is the one of {b, a} that nibble i names; the nibble's bit 3 replicates its sign."""
    only(instruction)  # only the general mode

    def compute(a, b, selector):
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(1, np.uint32)
        for i in range(4):
            nibble = ((selector >> np.uint32(4 * i)) & np.uint32(0xF)).astype(np.uint64)
            byte = (both >> ((nibble & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
            sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            byte = np.where(nibble & np.uint64(8), sign, byte).astype(np.uint32)
            result = result | (byte << np.uint32(8 * i))
        return result

    return compiler.elementwise(instruction, compute, ("b32",) * 3, "b32")


@handles("popc", "clz", "brev")
def count_bits(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction)
    if value_type(instruction) != "b32":
        raise unknown(instruction)

    def digits(a):
        return (a[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)

    compute = {
        "popc": lambda a: digits(a).sum(axis=1, dtype=np.uint32),
        "clz": lambda a: (
            np.uint32(32) - np.ceil(np.log2(a.astype(np.float64) + 1.0)).astype(np.uint32)
        ),
        "brev": lambda a: (digits(a)[:, ::-1] << np.arange(32, dtype=np.uint32)).sum(
            axis=1, dtype=np.uint32
        ),
    }[instruction.opcode]
    return compiler.elementwise(instruction, compute, ("b32",), "b32")


@handles("selp")
def select(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction)
    kind = value_type(instruction)
    if isinstance(instruction.operands[1], Immediate) or isinstance(
        instruction.operands[2], Immediate
    ):
        literals = [o.text for o in instruction.operands[1:3] if isinstance(o, Immediate)]
        if kind == "b32" and any(t[:2] == "0f" for t in literals):
            kind = "f32"
    return compiler.elementwise(
        instruction, lambda a, b, p: np.where(p, a, b), (kind, kind, "pred"), kind
    )


_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _comparison(name: str, kind: str):
    """Floating comparisons are false on NaN, those that end in u are true."""
    if not types.is_float(kind):
        return _ORDERED[_UNSIGNED_NAMES.get(name, name)]
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name in _ORDERED:
        return lambda a, b: _ORDERED[name](a, b) & ~(np.isnan(a) | np.isnan(b))
    return lambda a, b: _ORDERED[name[:-1]](a, b) | np.isnan(a) | np.isnan(b)


@handles("setp", "set")
def compare(compiler: Compiler, instruction: Instruction) -> Step:
    kind, combine = (
        value_type(instruction),
        [m for m in instruction.modifiers if m in ("and", "or", "xor")],
    )
    name = instruction.modifiers[0]
    only(instruction, name, "ftz", *combine)
    if instruction.opcode == "set" or kind in ("bf16", "f16x2", "bf16x2"):
        raise unknown(instruction)
    holds = _comparison(name, kind)
    if not combine:
        return compiler.elementwise(instruction, holds, (kind, kind), "pred")
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combine[0]]
    return compiler.elementwise(
        instruction, lambda a, b, p: join(holds(a, b), p), (kind, kind, "pred"), "pred"
    )
