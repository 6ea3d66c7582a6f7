"""Single instructions against independent arithmetic in Python integers or the C library."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from support import ptx
from support.ptx import types

MASK32 = 0xFFFFFFFF
#: Words with every kind of edge, and random ones.
WORDS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xCAFEBABE]
WORDS += [int(v) for v in np.random.default_rng(0).integers(0, 2**32, 53, dtype=np.uint64)]


def run_ptx(
    body: str, arrays: list[np.ndarray], threads: int = 64, scalars=(), ctas: int = 1
) -> None:
    """A kernel whose %rd1, %rd2, ... point at each thread's element of the arrays."""
    names = [f"p{i}" for i in range(len(arrays) + len(scalars))]
    params = ", ".join(f".param .u64 {n}" for n in names[: len(arrays)])
    params += "".join(f", .param .u32 {n}" for n in names[len(arrays) :])
    addresses = "\n".join(
        f"ld.param.u64 %rd{i + 1}, [{names[i]}]; "
        f"mad.wide.u32 %rd{i + 1}, %r0, {a.itemsize}, %rd{i + 1};"
        for i, a in enumerate(arrays)
    )
    text = f"""
        .version 8.7
        .target sm_80
        .address_size 64
        .extern .shared .align 16 .b8 dynamic[];
        .visible .entry test({params})
        .reqntid {threads}
        {{
        .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
        mov.u32 %r0, %tid.x;
        {addresses}
        {body}
        ret;
        }}"""
    ptx.launch(ptx.parse(text), grid=(ctas,), arguments=[*arrays, *scalars], shared_bytes=1024)


def run_words(instruction: str, *operands: list[int]) -> list[int]:
    """Applies ``instruction`` (with %r9 as destination, %r1.. as sources) to lists of words."""
    count = len(operands[0])
    arrays = [np.array(o, np.uint32) for o in operands] + [np.zeros(count, np.uint32)]
    loads = "".join(f"ld.global.b32 %r{i + 1}, [%rd{i + 1}];" for i in range(len(operands)))
    run_ptx(f"{loads} {instruction} st.global.b32 [%rd{len(arrays)}], %r9;", arrays, count)
    return arrays[-1].tolist()


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def bfe(value: int, position: int, length: int, is_signed: bool) -> int:
    position, length = position & 0xFF, length & 0xFF
    sign = (value >> min(position + length - 1, 31)) & 1 if is_signed and length else 0
    result = 0
    for i in range(32):
        inside = i < length and position + i < 32
        result |= ((value >> (position + i)) & 1 if inside else sign) << i
    return result


def prmt(a: int, b: int, selector: int) -> int:
    source = a | b << 32
    result = 0
    for i in range(4):
        nibble = selector >> (4 * i) & 0xF
        byte = source >> (8 * (nibble & 7)) & 0xFF
        result |= ((0xFF if byte >> 7 else 0) if nibble & 8 else byte) << (8 * i)
    return result


THREE = {
    "lop3.b32 %r9, %r1, %r2, %r3, 0x96;": lambda a, b, c: a ^ b ^ c,
    "lop3.b32 %r9, %r1, %r2, %r3, 0xEA;": lambda a, b, c: (a & b) | c,
    "lop3.b32 %r9, %r1, %r2, %r3, 202;": lambda a, b, c: (a & b) | (~a & c & MASK32),
    "prmt.b32 %r9, %r1, %r2, %r3;": prmt,
    "mad.lo.s32 %r9, %r1, %r2, %r3;": lambda a, b, c: (a * b + c) & MASK32,
    "mad.hi.u32 %r9, %r1, %r2, %r3;": lambda a, b, c: ((a * b >> 32) + c) & MASK32,
    "shf.l.wrap.b32 %r9, %r1, %r2, %r3;": lambda a, b, c: (
        (((b << 32 | a) << (c & 31)) >> 32) & MASK32
    ),
    "shf.r.wrap.b32 %r9, %r1, %r2, %r3;": lambda a, b, c: ((b << 32 | a) >> (c & 31)) & MASK32,
    "shf.r.clamp.b32 %r9, %r1, %r2, %r3;": lambda a, b, c: ((b << 32 | a) >> min(c, 32)) & MASK32,
    "shf.l.clamp.b32 %r9, %r1, %r2, %r3;": lambda a, b, c: (
        (((b << 32 | a) << min(c, 32)) >> 32) & MASK32
    ),
    "bfe.u32 %r9, %r1, %r2, %r3;": lambda a, b, c: bfe(a, b, c, False),
    "bfe.s32 %r9, %r1, %r2, %r3;": lambda a, b, c: bfe(a, b, c, True),
}
TWO = {
    "mul.hi.u32 %r9, %r1, %r2;": lambda a, b: a * b >> 32,
    "mul.hi.s32 %r9, %r1, %r2;": lambda a, b: (signed(a) * signed(b) >> 32) & MASK32,
    "mul.lo.s32 %r9, %r1, %r2;": lambda a, b: a * b & MASK32,
    "shl.b32 %r9, %r1, %r2;": lambda a, b: (a << b) & MASK32 if b < 32 else 0,
    "shr.u32 %r9, %r1, %r2;": lambda a, b: a >> min(b, 32),
    "shr.s32 %r9, %r1, %r2;": lambda a, b: (signed(a) >> min(b, 31)) & MASK32,
    "sub.s32 %r9, %r1, %r2;": lambda a, b: (a - b) & MASK32,
    "min.s32 %r9, %r1, %r2;": lambda a, b: min(signed(a), signed(b)) & MASK32,
    "max.u32 %r9, %r1, %r2;": max,
    "div.u32 %r9, %r1, %r2;": lambda a, b: a // b,
    "rem.s32 %r9, %r1, %r2;": lambda a, b: int(np.fmod(signed(a), signed(b))) & MASK32,
    "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r9, 1, 0, %p1;": lambda a, b: int(signed(a) < signed(b)),
    "setp.hi.u32 %p1, %r1, %r2; selp.b32 %r9, 1, 0, %p1;": lambda a, b: int(a > b),
    "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; mov.b32 %r9, {%h1, %h2};": lambda a, b: (
        (a & 0xFFFF) | (b & 0xFFFF) << 16
    ),
}
ONE = {
    "popc.b32 %r9, %r1;": lambda a: a.bit_count(),
    "clz.b32 %r9, %r1;": lambda a: 32 - a.bit_length(),
    "brev.b32 %r9, %r1;": lambda a: int(f"{a:032b}"[::-1], 2),
    "not.b32 %r9, %r1;": lambda a: ~a & MASK32,
    "mov.b32 {%h1, %h2}, %r1; mov.b32 %r9, {%h2, %h1};": lambda a: (a >> 16) | (a & 0xFFFF) << 16,
    "cvt.s64.s32 %rd9, %r1; shr.u64 %rd9, %rd9, 8; cvt.u32.u64 %r9, %rd9;": lambda a: (
        (signed(a) >> 8) & MASK32
    ),
}


@pytest.mark.parametrize("instruction", THREE)
def test_three_operands(instruction):
    third = [w % 70 if "shf" in instruction or "bfe" in instruction else w for w in WORDS[::-1]]
    second = (
        [w % 40 for w in WORDS[7:] + WORDS[:7]] if "bfe" in instruction else WORDS[7:] + WORDS[:7]
    )
    expected = [THREE[instruction](*v) for v in zip(WORDS, second, third)]
    assert run_words(instruction, WORDS, second, third) == expected


@pytest.mark.parametrize("instruction", TWO)
def test_two_operands(instruction):
    second = WORDS[5:] + WORDS[:5]
    if "sh" in instruction[:2]:
        second = [w % 40 for w in second]
    if instruction[:3] in ("div", "rem"):
        second = [w or 3 for w in second]
    expected = [TWO[instruction](*v) for v in zip(WORDS, second)]
    assert run_words(instruction, WORDS, second) == expected


@pytest.mark.parametrize("instruction", ONE)
def test_one_operand(instruction):
    assert run_words(instruction, WORDS) == [ONE[instruction](a) for a in WORDS]


def float_bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def test_fma_rounds_once():
    """Against the C library's fmaf; with triples for which rounding in float64 first goes wrong."""
    library = ctypes.util.find_library("m")
    if library is None:
        pytest.skip("no C mathematics library to compare with")
    fmaf = ctypes.CDLL(library).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(4096).astype(np.float32) for _ in range(2))
    c = (rng.standard_normal(4096) * 2.0 ** rng.integers(-60, 30, 4096)).astype(np.float32)
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 lies halfway between two float32: c alone decides, and is
    # too small for float64 to see.
    a[:2], b[:2], c[:2] = np.float32(1 + 2**-12), np.float32(1 + 2**-12), [2.0**-60, -(2.0**-60)]
    expected = np.array([fmaf(*map(float, v)) for v in zip(a, b, c)], np.float32)
    np.testing.assert_array_equal(types.fma_f32(a, b, c).view(np.uint32), expected.view(np.uint32))
    through_float64 = (a.astype(float) * b + c).astype(np.float32)
    assert (through_float64 != expected).any()  # the test can tell the difference


def test_fma_in_bfloat16_rounds_once():
    """Against rational arithmetic; with sums whose exact value lies beside a tie."""
    rng = np.random.default_rng(2)
    a, b, c = (types.f32_to_bf16(rng.standard_normal(2000).astype(np.float32)) for _ in range(3))
    c[:1000] = types.f32_to_bf16((rng.standard_normal(1000) * 2.0**-30).astype(np.float32))
    got = types.bf16_to_f32(types.fma_bf16(a, b, c))
    values = (types.bf16_to_f32(v).tolist() for v in (a, b, c))
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(*values)]
    for result, sum_ in zip(got.tolist(), exact):
        step = Fraction(2) ** (math.frexp(float(sum_))[1] - 8)  # of bfloat16 at this size
        assert result == step * round(sum_ / step)  # Python rounds ties to even
    halves = [(x.astype(np.uint32) << np.uint32(16)) | x[::-1] for x in (a, b, c)]
    both = run_words("fma.rn.bf16x2 %r9, %r1, %r2, %r3;", *(h[:64].tolist() for h in halves))
    expected = types.fma_bf16(a, b, c)[:64], types.fma_bf16(a[::-1], b[::-1], c[::-1])[:64]
    assert both == [int(h) << 16 | int(l) for h, l in zip(*expected)]


@pytest.mark.parametrize("value", [1e-40, -1e-40])
def test_subnormals_are_flushed_where_the_instruction_says_so(value):
    raw = float_bits(value)
    assert run_words("add.rn.f32 %r9, %r1, %r2;", [raw], [0]) == [raw]
    assert run_words("add.rn.ftz.f32 %r9, %r1, %r2;", [raw], [0]) == [0]


@pytest.mark.parametrize(
    "comparison,less,equal,with_nan",
    [
        ("lt", 1, 0, 0),
        ("ltu", 1, 0, 1),
        ("ne", 1, 0, 0),
        ("neu", 1, 0, 1),
        ("le", 1, 1, 0),
        ("nan", 0, 0, 1),
    ],
)
def test_comparisons_with_nan(comparison, less, equal, with_nan):
    a, b = [float_bits(v) for v in (1.0, 2.0, np.nan)], [float_bits(2.0)] * 3
    got = run_words(f"setp.{comparison}.f32 %p1, %r1, %r2; selp.b32 %r9, 1, 0, %p1;", a, b)
    assert got == [less, equal, with_nan]


def test_conversions_to_narrow_floats_agree_with_torch():
    values = torch.cat(
        (
            torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 1e3,
            torch.tensor(
                [0.0, -0.0, float("inf"), -float("inf"), 65519.0, 65520.0, 1e-7, 3e38, 1.00390625]
            ),
        )
    )
    raw = values.numpy()
    bf16 = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(types.f32_to_bf16(raw), bf16)
    np.testing.assert_array_equal(
        types.bf16_to_f32(bf16), values.to(torch.bfloat16).float().numpy()
    )
    assert np.isnan(types.bf16_to_f32(types.f32_to_bf16(np.array([np.nan], np.float32)))).all()
    # tf32: the nearest multiple of 2^(exponent - 10), ties away from zero.
    finite = raw[np.isfinite(raw) & (raw != 0)].astype(np.float64)
    step = 2.0 ** (np.floor(np.log2(np.abs(finite))) - 10)
    nearest = np.sign(finite) * np.floor(np.abs(finite) / step + 0.5) * step
    got = types.f32_to_tf32(finite.astype(np.float32)).view(np.float32)
    np.testing.assert_array_equal(got, nearest.astype(np.float32))


def test_float_to_integer_saturates():
    given = [1.5, 2.5, -1.5, 3e9, -3e9, float("nan")]
    got = run_words("cvt.rni.s32.f32 %r9, %r1;", [float_bits(v) for v in given])
    assert [signed(v) for v in got] == [2, 2, -2, 2**31 - 1, -(2**31), 0]


def test_threads_diverge_and_meet_again():
    """Each thread adds its own number of times, then all exchange results across the warp."""
    counts = np.arange(64, dtype=np.uint32)[::-1].copy()
    out = np.zeros(64, np.uint32)
    run_ptx(
        """
        ld.global.b32 %r1, [%rd1]; mov.u32 %r2, 0; mov.u32 %r3, 0;
        LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
        add.s32 %r3, %r3, 2; add.s32 %r2, %r2, 1; bra.uni LOOP;
        DONE: shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1; st.global.b32 [%rd2], %r4;
        """,
        [counts, out],
    )
    np.testing.assert_array_equal(out, 2 * counts.reshape(-1, 2)[:, ::-1].reshape(-1))


@pytest.mark.parametrize(
    "mode,lanes,clamp,source",
    [
        ("idx", 3, 31, lambda i: 3),
        ("up", 2, 0, lambda i: i - 2 if i >= 2 else i),
        ("down", 5, 31, lambda i: i + 5 if i + 5 < 32 else i),
        ("bfly", 16, 31, lambda i: i ^ 16),
        ("idx", 1, 0x181F, lambda i: i // 8 * 8 + 1),
    ],
)
def test_shuffles(mode, lanes, clamp, source):
    values = list(range(100, 132))
    got = run_words(f"shfl.sync.{mode}.b32 %r9, %r1, {lanes}, {clamp}, -1;", values)
    assert got == [values[source(i)] for i in range(32)]


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(transposed):
    """Lane i gets row i/4, columns 2(i%4) and the next, of an 8x8 matrix of halves."""
    matrix = np.arange(64, dtype=np.uint16)
    words, out = matrix.view(np.uint32).copy(), np.zeros(32, np.uint32)
    run_ptx(
        f"""
        ld.global.b32 %r1, [%rd1]; shl.b32 %r2, %r0, 2; st.shared.b32 [%r2], %r1; bar.sync 0;
        and.b32 %r3, %r0, 7; shl.b32 %r3, %r3, 4;
        ldmatrix.sync.aligned.m8n8.x1{".trans" if transposed else ""}.shared.b16 {{%r4}}, [%r3];
        st.global.b32 [%rd2], %r4;
        """,
        [words, out],
        threads=32,
    )
    expected = matrix.reshape(8, 8).T if transposed else matrix.reshape(8, 8)
    np.testing.assert_array_equal(out.view(np.uint16).reshape(8, 8), expected)


def test_vector_loads_must_be_aligned():
    data, out = np.arange(64, dtype=np.uint32), np.zeros(16, np.uint32)
    body = """
        mul.lo.s32 %r1, %r0, 12; cvt.u64.u32 %rd3, %r1; add.s64 %rd1, %rd1, %rd3;
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1 + OFFSET]; st.global.b32 [%rd2], %r4;
    """
    run_ptx(body.replace("OFFSET", "0"), [data, out], threads=16)
    np.testing.assert_array_equal(out, data[3::4])
    with pytest.raises(ptx.PtxError, match=r"not aligned to 16 bytes: ld\.global"):
        run_ptx(body.replace("OFFSET", "4"), [data, out], threads=16)


@pytest.mark.parametrize(
    "body,message",
    [
        ("frobnicate.b32 %r1, %r2;", r"unknown instruction: frobnicate\.b32 %r1, %r2"),
        ("add.rz.f32 %r1, %r2, %r3;", r"unknown instruction: add\.rz\.f32"),
        ("add.f32 %r1, %r2, %r3;", r"may fuse this, its rounding is open: add\.f32"),
        ("mul.ftz.f32 %r1, %r2, %r3;", "may fuse this"),
        ("fma.rn.f64 %rd1, %rd2, %rd3, %rd4;", r"unknown instruction: fma\.rn\.f64"),
        ("atom.global.add.u32 %r1, [%rd1], 1;", "unknown instruction: atom"),
        ("setp.lt.u32 %p1, %r0, 8; @%p1 bar.sync 0;", "barrier"),
        ("setp.lt.u32 %p1, %r0, 8; @%p1 shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;", "only in part"),
        ("ld.global.b32 %r1, [%rd1 + 256];", "out of bounds"),
        ("ld.global.b32 %r1, [%rd1 + -4];", "out of bounds"),
        ("st.shared.b32 [1024], %r0;", "outside the 1024 bytes of shared memory"),
        ("st.shared.b32 [0], %r0;", "different values"),
        ("trap;", "trap"),
    ],
)
def test_what_is_refused(body, message):
    with pytest.raises(ptx.PtxError, match=message):
        run_ptx(body, [np.zeros(64, np.uint32)])


def test_what_nobody_wrote_is_nan():
    out = np.zeros(64, np.float32)
    run_ptx("add.rn.f32 %r9, %r5, 0f3F800000; st.global.b32 [%rd1], %r9;", [out])
    assert np.isnan(out).all()
    run_ptx("ld.shared.b32 %r1, [16]; st.global.b32 [%rd1], %r1;", [out])
    assert np.isnan(out).all()
