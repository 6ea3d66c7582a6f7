"""The noise stream in Triton: bit for bit that of ``fastlbbnn/reference/noise.py``.

Every rounding counts, so kernels that call these functions are launched with
``enable_fp_fusion=False`` (a fused multiply-add would round once where the definition rounds
twice), and division and square root are the IEEE ones, not the fast ones that Triton takes by
default.

A counter gives four words, for columns 4j .. 4j+3 of one row. Tiles are therefore generated on
``[rows, columns / 4]`` and their four parts interleaved at the end, which costs no extra Philox.

A round of Philox is four instructions: a wide multiplication gives both halves of a product, a
three-input logic instruction both XORs of a word. The C++ kernels skip the last bits of a gate's
uniform where the first ten decide the gate. Here that would have to hold for a whole tile at once:
with one weight in 1,000 undecided (hard gates; with relaxed ones it is far more) a tile of 2,048
weights is decided with probability 0.13, so the bits are always drawn.
"""

import triton
import triton.language as tl

#: Streams, as in ``fastlbbnn.reference.Stream``.
WEIGHT = tl.constexpr(0)
GATE = tl.constexpr(1)
BIAS = tl.constexpr(2)
ACTIVATION = tl.constexpr(3)


@triton.jit
def philox(c0, c1, c2, c3, seed):
    """Philox4x32-10 of a counter of uint32 (tensors or scalars) under a 64-bit seed: four words."""
    key = seed.to(tl.uint64, bitcast=True)
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        # 32 x 32 -> 64 bits: one wide multiplication instead of a high and a low one.
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = p1.to(tl.uint32)
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = p0.to(tl.uint32)
        # In 64 bits and cut, so that the sum may wrap around.
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _words(seed, stream: tl.constexpr, sample, row, group):
    """The words of columns 4*group .. 4*group+3, for row [R, 1] and group [1, G], int32."""
    c0 = group.to(tl.uint32)
    c1 = row.to(tl.uint32)
    c2 = tl.zeros_like(c0) + stream
    c3 = tl.zeros_like(c0) + tl.cast(sample, tl.uint32)
    return philox(c0, c1, c2, c3, seed)


@triton.jit
def _log(x, exponent_bias: tl.constexpr):
    """log(x) - exponent_bias * log(2): exponent and polynomial, each operation rounded on its own.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    t = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    n = exponent.to(tl.float32) - exponent_bias
    p = t * 0.11948088556528091 + -0.18586990237236023  # 0x1.e964cap-4, -0x1.7ca95cp-3
    p = p * t + 0.20449277758598328  # 0x1.a2cd1cp-3
    p = p * t + -0.24919140338897705  # -0x1.fe5810p-3
    p = p * t + 0.3331921696662903  # 0x1.553054p-2
    p = p * t + -0.5000084638595581  # -0x1.00011cp-1
    p = (t * t) * p + t
    return n * 0.6931471824645996 + p  # 0x1.62e430p-1


@triton.jit
def _box_muller(radius_word, angle_word):
    """Two independent standard normals from the upper 22 bits of two words each."""
    v = ((radius_word >> 9) | 1).to(tl.int32).to(tl.float32)
    radius = tl.math.sqrt_rn(_log(v, 23.0) * -2.0)
    angle = (((angle_word << 2) >> 11) | 1).to(tl.int32) - 1048576
    s = angle.to(tl.float32) * 4.76837158203125e-07  # 2^-21
    s2 = s * s
    p = s2 * 0.07795638591051102 + -0.6458022594451904  # 0x1.3f4f32p-4, -0x1.4aa698p-1
    p = p * s2 + 1.5707941055297852  # 0x1.921f90p+0
    q = s2 * -0.02042415738105774 + 0.25360560417175293  # -0x1.4ea120p-6, 0x1.03b130p-2
    q = q * s2 + -1.2336978912353516  # -0x1.3bd3a0p+0
    q = q * s2 + 1.0
    across = (p * s) * radius
    along = q * radius
    # Bit 31 mirrors, bit 30 exchanges the axes.
    mirror = angle_word & 0x80000000
    along = (along.to(tl.uint32, bitcast=True) ^ mirror).to(tl.float32, bitcast=True)
    exchange = (angle_word & 0x40000000) != 0
    return tl.where(exchange, across, along), tl.where(exchange, along, across)


@triton.jit
def _interleave(a, b, c, d):
    """[R, G] four times -> [R, 4G] with columns a0 b0 c0 d0 a1 ..."""
    pairs = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(pairs, [a.shape[0], 4 * a.shape[1]])


@triton.jit
def _uniform(weight_word, gate_word):
    """An odd multiple of 2^-24: ten bits of the weight's own word, then 14 of the gate stream's."""
    bits = ((weight_word & 0x3FF) << 14) | (gate_word >> 18) | 1
    return bits.to(tl.int32).to(tl.float32) * 5.960464477539063e-08  # 2^-24


@triton.jit
def logistic(weight_word, gate_word):
    """logit(u), what a gate compares omega with."""
    u = _uniform(weight_word, gate_word)
    return _log(tl.math.div_rn(u, 1.0 - u), 0.0)


@triton.jit
def normal_tile(seed, stream: tl.constexpr, sample, row, group):
    """Standard normals [R, 4G] of rows row [R, 1] and columns from 4 * group [1, G]."""
    w0, w1, w2, w3 = _words(seed, stream, sample, row, group)
    e0, e1 = _box_muller(w0, w1)
    e2, e3 = _box_muller(w2, w3)
    return _interleave(e0, e1, e2, e3)


@triton.jit
def gated_tile(seed, sample, row, group):
    """eps of the weights [R, 4G], and the logistic noise of their elementwise gates."""
    w0, w1, w2, w3 = _words(seed, WEIGHT, sample, row, group)
    e0, e1 = _box_muller(w0, w1)
    e2, e3 = _box_muller(w2, w3)
    g0, g1, g2, g3 = _words(seed, GATE, sample, row, group)
    noise = _interleave(logistic(w0, g0), logistic(w1, g1), logistic(w2, g2), logistic(w3, g3))
    return _interleave(e0, e1, e2, e3), noise


@triton.jit
def word_at(seed, stream: tl.constexpr, sample, row, col):
    """The word of each (row, col) on its own, one Philox each: for blocks, which are few."""
    # No vector addition of row and col: both keep their own shape until they meet in the counter.
    zero = (row ^ row) ^ (col ^ col)
    w0, w1, w2, w3 = philox(
        (zero + col // 4).to(tl.uint32),
        (zero + row).to(tl.uint32),
        zero.to(tl.uint32) + stream,
        zero.to(tl.uint32) + tl.cast(sample, tl.uint32),
        seed,
    )
    place = zero + col % 4
    return tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))


@triton.jit
def normal_at(seed, stream: tl.constexpr, sample, row, col):
    """Standard normals of columns col [C] of one row: for biases."""
    w0, w1, w2, w3 = philox(
        (col // 4).to(tl.uint32),
        tl.zeros_like(col).to(tl.uint32) + row,
        tl.zeros_like(col).to(tl.uint32) + stream,
        tl.zeros_like(col).to(tl.uint32) + tl.cast(sample, tl.uint32),
        seed,
    )
    upper = col % 4 >= 2
    first, second = _box_muller(tl.where(upper, w2, w0), tl.where(upper, w3, w1))
    return tl.where(col % 2 == 0, first, second)


@triton.jit
def block_logistic(seed, sample, block_row, block_col, block_rows, block_cols):
    """Logistic noise of the gates of blocks, [R, C] from block_row [R, 1] and block_col [1, C].

    The first bits are those of the block's first weight.
    """
    first = word_at(seed, WEIGHT, sample, block_row * block_rows, block_col * block_cols)
    return logistic(first, word_at(seed, GATE, sample, block_row, block_col))
