"""The noise stream, defined: Philox4x32-10 and the steps from its words to normals and gates.

Noise is a pure function of (seed, stream, sample, row, column). Every backend computes it in its own
way and gets the same bits; this file says which. The arithmetic is float32 with one rounding per
operation (no fused multiply-add), so the short polynomials below *are* the distribution: their
distance from the exact logarithm and sine, about 2e-6, is far below anything a draw can show.

A weight owns one 32-bit word. Its upper 22 bits go into ``eps``, its lower 10 bits are the first bits
of the uniform ``u`` of its indicator; 14 bits from a second stream complete ``u``. (Ten bits settle
most indicators, so a fast kernel seldom needs the second stream.) A block of weights has one
indicator: its first bits are those of the block's first weight.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor


class Stream(IntEnum):
    """Keeps the draws of one seed apart. Mirrored in ``csrc/common/philox.h``."""

    WEIGHT = 0  # eps of the weights, [N, K]
    GATE = 1  # last bits of the indicators' uniforms, [blocks along N, blocks along K]
    BIAS = 2  # eps of the biases, [1, N]
    ACTIVATION = 3  # eps of the activations (local reparametrisation), [M, N]


#: Logits that are random themselves (``nn.inclusion``) are drawn before a draw's kernel runs, from its
#: seed with these bits flipped: another key, so another stream.
LOGIT_KEY = 0x5851F42D4C957F2D

_LOW32 = 0xFFFFFFFF


def opaque(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Makes a function of (seed, ..., rows, cols, ...) one node of a compiled graph.

    torch.compile would otherwise take Philox apart, spend minutes on each layer of a network, and be
    free to fuse multiplications with additions, which changes the bits of the stream.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(function)
        def contiguous(*args, **kwargs) -> Tensor:
            return function(*args, **kwargs).contiguous()

        operator = torch.library.custom_op(f"fastlbbnn::{name}", contiguous, mutates_args=())
        signature = inspect.signature(function)

        @operator.register_fake
        def _(*args, **kwargs):
            given = signature.bind(*args, **kwargs).arguments
            return given["seed"].new_empty(given["rows"], given["cols"], dtype=torch.float32)

        @functools.wraps(function)
        def call(*args, **kwargs) -> Tensor:
            return (operator if torch.compiler.is_compiling() else function)(*args, **kwargs)

        return call

    return decorate


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox on int64 tensors that hold 32-bit words (Salmon et al., 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The 64-bit products wrap around as int64; the masked halves are right all the same.
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW32) ^ c1 ^ k0,
            p1 & _LOW32,
            ((p0 >> 32) & _LOW32) ^ c3 ^ k1,
            p0 & _LOW32,
        )
        k0 = (k0 + 0x9E3779B9) & _LOW32
        k1 = (k1 + 0xBB67AE85) & _LOW32
    return c0, c1, c2, c3


def words(seed: Tensor, stream: Stream, sample: int, rows: int, cols: int) -> Tensor:
    """Random 32-bit words [rows, cols] as int64: counter (col // 4, row, stream, sample), word col % 4."""
    device = seed.device
    groups = (cols + 3) // 4
    col = torch.arange(groups, device=device).expand(rows, groups)
    row = torch.arange(rows, device=device).unsqueeze(1).expand(rows, groups)
    counter = (col, row, torch.full_like(col, int(stream)), torch.full_like(col, sample))
    seed = seed.reshape(())
    out = philox4x32(counter, (seed & _LOW32, (seed >> 32) & _LOW32))
    return torch.stack(out, dim=-1).reshape(rows, groups * 4)[:, :cols]


def _log(x: Tensor, exponent_bias: int) -> Tensor:
    """log(x) - exponent_bias * log(2) for positive float32 x, by exponent and polynomial."""
    bits = x.view(torch.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    t = (bits - (exponent << 23)).view(torch.float32) - 1.0  # mantissa in [sqrt(1/2), sqrt(2)) - 1
    n = exponent.to(torch.float32) - float(exponent_bias)
    p = torch.full_like(t, float.fromhex("0x1.e964cap-4"))
    for coefficient in (
        "-0x1.7ca95cp-3",
        "0x1.a2cd1cp-3",
        "-0x1.fe5810p-3",
        "0x1.553054p-2",
        "-0x1.00011cp-1",
    ):
        p = p * t + float.fromhex(coefficient)
    p = (t * t) * p + t
    return n * float.fromhex("0x1.62e430p-1") + p


def _box_muller(radius_word: Tensor, angle_word: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent standard normals from the upper 22 bits of two words each."""
    v = ((radius_word >> 9) | 1).to(torch.float32)  # an odd multiple of 2^-23, times 2^23
    # Through float64: the square root of torch's float32 is not correctly rounded everywhere.
    radius = (_log(v, 23) * -2.0).double().sqrt().to(torch.float32)

    # A quarter of the circle (angle pi/2 * s, |s| < 1/2), bit 31 for the opposite quarter, bit 30 to
    # exchange the axes.
    angle = ((((angle_word << 2) & _LOW32) >> 11) | 1) - (1 << 20)
    s = angle.to(torch.float32) * 2.0**-21
    s2 = s * s
    p = torch.full_like(s, float.fromhex("0x1.3f4f32p-4"))
    for coefficient in ("-0x1.4aa698p-1", "0x1.921f90p+0"):
        p = p * s2 + float.fromhex(coefficient)
    q = torch.full_like(s, float.fromhex("-0x1.4ea120p-6"))
    for coefficient in ("0x1.03b130p-2", "-0x1.3bd3a0p+0", "0x1p+0"):
        q = q * s2 + float.fromhex(coefficient)
    across = (p * s) * radius
    along = q * radius
    along = torch.where((angle_word >> 31) != 0, -along, along)
    exchange = ((angle_word >> 30) & 1) != 0
    return torch.where(exchange, across, along), torch.where(exchange, along, across)


@opaque("reference_normals")
def normals(seed: Tensor, stream: Stream, sample: int, rows: int, cols: int) -> Tensor:
    """Standard normals [rows, cols], float32."""
    even = cols + cols % 2
    w = words(seed, stream, sample, rows, even)
    first, second = _box_muller(w[:, 0::2], w[:, 1::2])
    return torch.stack((first, second), dim=-1).reshape(rows, even)[:, :cols]


def gate_uniforms(
    seed: Tensor, sample: int, rows: int, cols: int, block: tuple[int, int] = (1, 1)
) -> Tensor:
    """Uniforms [rows, cols] of a grid of indicators: odd multiples of 2^-24 in (0, 1), float32.

    Only the first weight's word of each block is needed, so the counters are made for those alone.
    """
    block_rows, block_cols = block
    high = _words_at(seed, Stream.WEIGHT, sample, rows, cols, block_rows, block_cols) & 0x3FF
    low = words(seed, Stream.GATE, sample, rows, cols) >> 18
    return ((high << 14) | low | 1).to(torch.float32) * 2.0**-24


def _words_at(
    seed: Tensor, stream: Stream, sample: int, rows: int, cols: int, row_step: int, col_step: int
) -> Tensor:
    """Words of rows 0, row_step, ... and columns 0, col_step, ..., [rows, cols]."""
    device = seed.device
    col = (torch.arange(cols, device=device) * col_step).expand(rows, cols)
    row = (torch.arange(rows, device=device) * row_step).unsqueeze(1).expand(rows, cols)
    counter = (col // 4, row, torch.full_like(col, int(stream)), torch.full_like(col, sample))
    seed = seed.reshape(())
    out = torch.stack(philox4x32(counter, (seed & _LOW32, (seed >> 32) & _LOW32)), dim=-1)
    return out.gather(-1, (col % 4).unsqueeze(-1)).squeeze(-1)


@opaque("reference_gate_logistics")
def gate_logistics(
    seed: Tensor, sample: int, rows: int, cols: int, block_rows: int = 1, block_cols: int = 1
) -> Tensor:
    """logit(u) of the same uniforms: what a gate compares omega with, float32."""
    u = gate_uniforms(seed, sample, rows, cols, (block_rows, block_cols))
    return _log(u / (1.0 - u), 0)
