"""The vector form of the C export: a network as straight-line code over many rows of a batch at a time.

Vectors hold one unit of 4, 8 or 16 rows of the batch, side by side. A weight is one multiplication and addition
of two of them, with its value and its places in the code: nothing is looked up, and nothing is decided. What a
vector is the source says in three ways: AVX-512, the vectors of GCC and Clang, plain arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..network import SparseLayer, SparseNetwork
from .c_text import float_literal, floats, indices
from .naming import layers_with_effect

#: Weights of a function: for twice the length compilers take more than twice the time.
_PART = 400

#: Weights of a row that go into four sums: one would wait for its own additions.
_LONG = 12

#: Columns that are read together.
_WINDOW = 8

_TYPES = """\
/* VECTOR rows of the batch, side by side. Compile with optimisation, for the processor that it runs on (-O2
 * -march=native). {upper}_PORTABLE leaves out all that is not C99. */
#if defined(__AVX512F__) && !defined({upper}_PORTABLE)
#include <immintrin.h>
#define VECTOR 16
#define OUT_OF_LINE __attribute__((noinline))
typedef __m512 vector;
static inline vector spread(float a) {{ return _mm512_set1_ps(a); }}
/* NaN passes: of two that cannot be compared the second is taken. */
static inline vector positive(vector a) {{ return _mm512_max_ps(_mm512_setzero_ps(), a); }}
/* Of loads there are fewest in a cycle: four weights are one of them, and told apart in registers, which a
 * compiler that saw that they are constants would not do. */
typedef __m512 four_weights;
#define HIDDEN(weights) __asm__("" : "+r"(weights))
#define FOUR(weights) _mm512_broadcast_f32x4(_mm_loadu_ps(weights))
#define PLUS(a, b) _mm512_add_ps(a, b)
#define TIMES(sum, w, k, x) _mm512_fmadd_ps(_mm512_permute_ps(w, (k) * 0x55), x, sum)
#elif defined(__GNUC__) && !defined({upper}_PORTABLE)
#ifdef __AVX__
#define VECTOR 8
#else
#define VECTOR 4
#endif
#define OUT_OF_LINE __attribute__((noinline))
typedef float vector __attribute__((vector_size(4 * VECTOR)));
typedef int32_t integers __attribute__((vector_size(4 * VECTOR)));
static inline vector spread(float a) {{ return a - (vector){{0.0f}}; }}
static inline vector positive(vector a) {{
  return (vector)((integers)a & ~(integers)(a < (vector){{0.0f}}));
}}
#define PLUS(a, b) ((a) + (b))
#define TIMES(sum, w, k, x) ((sum) + (w)[k] * (x))
#else
#define VECTOR 16
#define OUT_OF_LINE
typedef struct {{ float at[VECTOR]; }} vector;
static inline vector spread(float a) {{
  vector r;
  int i;
  for (i = 0; i < VECTOR; ++i) r.at[i] = a;
  return r;
}}
static inline vector positive(vector a) {{
  int i;
  for (i = 0; i < VECTOR; ++i) a.at[i] = a.at[i] < 0.0f ? 0.0f : a.at[i];
  return a;
}}
static inline vector plus(vector a, vector b) {{
  int i;
  for (i = 0; i < VECTOR; ++i) a.at[i] += b.at[i];
  return a;
}}
static inline vector times(vector sum, float w, vector x) {{
  int i;
  for (i = 0; i < VECTOR; ++i) sum.at[i] += w * x.at[i];
  return sum;
}}
#define PLUS(a, b) plus(a, b)
#define TIMES(sum, w, k, x) times(sum, (w)[k], x)
#endif
#ifndef FOUR
typedef const float *four_weights;
#define HIDDEN(weights) (void)(weights)
#define FOUR(weights) (weights)
#endif

/* One unit of VECTOR rows. */
typedef union {{ vector v; float at[VECTOR]; }} unit;
"""

_WINDOWS = """
/* Where vectors can be transposed in registers: */
#if defined(__AVX512F__) && !defined({upper}_PORTABLE)
#define TRANSPOSED
#define LOW(a, b) _mm512_unpacklo_ps(a, b)
#define HIGH(a, b) _mm512_unpackhi_ps(a, b)
#define FIRST(a, b) _mm512_shuffle_ps(a, b, 0x44)
#define SECOND(a, b) _mm512_shuffle_ps(a, b, 0xEE)
static inline void store_pieces(float *y, vector a) {{
  _mm_storeu_ps(y, _mm512_castps512_ps128(a));
  _mm_storeu_ps(y + 4 * (size_t){upper}_OUTPUTS, _mm512_extractf32x4_ps(a, 1));
  _mm_storeu_ps(y + 8 * (size_t){upper}_OUTPUTS, _mm512_extractf32x4_ps(a, 2));
  _mm_storeu_ps(y + 12 * (size_t){upper}_OUTPUTS, _mm512_extractf32x4_ps(a, 3));
}}
#elif defined(__has_builtin) && !defined({upper}_PORTABLE)
#if __has_builtin(__builtin_shufflevector)
#define TRANSPOSED
typedef float piece __attribute__((vector_size(16), aligned(4), may_alias));
#if VECTOR == 8
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
static inline void store_pieces(float *y, vector a) {{
  *(piece *)y = __builtin_shufflevector(a, a, 0, 1, 2, 3);
  *(piece *)(y + 4 * (size_t){upper}_OUTPUTS) = __builtin_shufflevector(a, a, 4, 5, 6, 7);
}}
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
static inline void store_pieces(float *y, vector a) {{ *(piece *)y = a; }}
#endif
#endif
#endif

#ifdef TRANSPOSED
/* Every four numbers of four vectors are rows of a square; they become its columns. */
#define TRANSPOSE(a, b, c, d) do {{ \\
    const vector ab = LOW(a, b), cd = LOW(c, d), ab_high = HIGH(a, b), cd_high = HIGH(c, d); \\
    a = FIRST(ab, cd); \\
    b = SECOND(ab, cd); \\
    c = FIRST(ab_high, cd_high); \\
    d = SECOND(ab_high, cd_high); \\
  }} while (0)
#endif
"""

_READ_ROWS = """
#ifdef TRANSPOSED
{tables}
/* Eight columns of VECTOR rows. */
#if VECTOR == 16
static inline vector rows_0_and_4(const float *x) {{
  const __m512d low = _mm512_castpd256_pd512(_mm256_castps_pd(_mm256_loadu_ps(x)));
  const __m256d high = _mm256_castps_pd(_mm256_loadu_ps(x + 4 * (size_t){upper}_INPUTS));
  return _mm512_castpd_ps(_mm512_insertf64x4(low, high, 1));
}}
static inline void read_window(const float *x, unit *to) {{
  const size_t next = {upper}_INPUTS;
  vector a = rows_0_and_4(x), b = rows_0_and_4(x + next);
  vector c = rows_0_and_4(x + 2 * next), d = rows_0_and_4(x + 3 * next);
  vector e = rows_0_and_4(x + 8 * next), f = rows_0_and_4(x + 9 * next);
  vector g = rows_0_and_4(x + 10 * next), h = rows_0_and_4(x + 11 * next);
  TRANSPOSE(a, b, c, d);
  TRANSPOSE(e, f, g, h);
  to[0].v = _mm512_shuffle_f32x4(a, e, 0x88);
  to[1].v = _mm512_shuffle_f32x4(b, f, 0x88);
  to[2].v = _mm512_shuffle_f32x4(c, g, 0x88);
  to[3].v = _mm512_shuffle_f32x4(d, h, 0x88);
  to[4].v = _mm512_shuffle_f32x4(a, e, 0xDD);
  to[5].v = _mm512_shuffle_f32x4(b, f, 0xDD);
  to[6].v = _mm512_shuffle_f32x4(c, g, 0xDD);
  to[7].v = _mm512_shuffle_f32x4(d, h, 0xDD);
}}
#else
static inline vector rows_0_and_4(const float *x) {{
#if VECTOR == 8
  const piece low = *(const piece *)x, high = *(const piece *)(x + 4 * (size_t){upper}_INPUTS);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  return *(const piece *)x;
#endif
}}
static inline void read_half(const float *x, unit *to) {{
  const size_t next = {upper}_INPUTS;
  vector a = rows_0_and_4(x), b = rows_0_and_4(x + next);
  vector c = rows_0_and_4(x + 2 * next), d = rows_0_and_4(x + 3 * next);
  TRANSPOSE(a, b, c, d);
  to[0].v = a;
  to[1].v = b;
  to[2].v = c;
  to[3].v = d;
}}
static inline void read_window(const float *x, unit *to) {{
  read_half(x, to);
  read_half(x + 4, to + 4);
}}
#endif

/* Of VECTOR rows. What a window writes beyond its last input, the next one overwrites. */
static void read_rows(const float *x, unit *in) {{
  size_t i;
  for (i = 0; i < {windows}; ++i) read_window(x + window_columns[i], in + window_units[i]);
}}
#endif
"""

_READ_SOME = """
{tables}
/* Of any number of rows. */
static void read_some(const float *x, size_t rows, unit *in) {{
  size_t i, row;
  for (i = 0; i < {count}; ++i) {{
    unit *to = in + input_units[i];
    to->v = spread(0.0f);
    for (row = 0; row < rows; ++row) to->at[row] = x[row * {upper}_INPUTS + input_columns[i]];
  }}
}}
"""

_WRITE_ROWS = """
#ifdef TRANSPOSED
/* Of VECTOR rows, four outputs at a time; the last four overlap with those before. */
static void write_rows(const unit *out, float *y) {{
  const size_t next = {upper}_OUTPUTS;
  size_t i;
  for (i = 0; i < {upper}_OUTPUTS; i += 4) {{
    vector a, b, c, d;
    if (i + 4 > {upper}_OUTPUTS) i = {upper}_OUTPUTS - 4;
    a = out[i].v;
    b = out[i + 1].v;
    c = out[i + 2].v;
    d = out[i + 3].v;
    TRANSPOSE(a, b, c, d);
    store_pieces(y + i, a);
    store_pieces(y + next + i, b);
    store_pieces(y + 2 * next + i, c);
    store_pieces(y + 3 * next + i, d);
  }}
}}
#endif
"""

_PREDICT = """
/* Of 1 to VECTOR rows. */
static void predict_rows(const float *x, float *y, size_t rows) {{
  unit {units};
  size_t i, row;
{read}{parts}{write}  for (row = 0; row < rows; ++row)
    for (i = 0; i < {upper}_OUTPUTS; ++i) y[row * {upper}_OUTPUTS + i] = out[i].at[row];
}}

void {name}_predict_batch(const float *x, float *y, size_t batch) {{
  size_t i;
  for (i = 0; i < batch; i += VECTOR) {{
    /* The last rows are computed together with some that are known already. */
    if (batch >= VECTOR && batch - i < VECTOR) i = batch - VECTOR;
    predict_rows(x + i * {upper}_INPUTS, y + i * {upper}_OUTPUTS, batch - i < VECTOR ? batch - i : VECTOR);
  }}
}}

void {name}_predict(const float *x, float *y) {{ predict_rows(x, y, 1); }}
"""


def windows_of(inputs: NDArray[np.int32], in_features: int) -> tuple[NDArray[np.int64], ...]:
    """How inputs are read, eight neighbouring columns at a time.

    Returns the first column of every window, the unit that it becomes, and the unit of every input. Needs
    ``in_features >= 8``.
    """
    columns: list[int] = []
    units: list[int] = []
    places = np.empty(inputs.size, np.int64)
    i, free = 0, 0
    while i < inputs.size:
        # At a multiple of eight, where rows are: elsewhere half of all reads would touch two cache lines.
        first = min(int(inputs[i]) // _WINDOW * _WINDOW, in_features - _WINDOW)
        last = int(np.searchsorted(inputs, first + _WINDOW))
        columns.append(first)
        units.append(free)
        places[i:last] = free + inputs[i:last] - first
        free = int(places[last - 1]) + 1
        i = last
    return np.array(columns, np.int64), np.array(units, np.int64), places


def lanes_source(network: SparseNetwork, name: str) -> str:
    """The source but for the preparation; see ``export_c``."""
    layers = layers_with_effect(network)
    upper = name.upper()
    text = [
        f'#include "{name}.h"\n\n#include <stdint.h>\n\n', _TYPES.format(upper=upper), _WINDOWS.format(upper=upper),
    ]  # fmt: skip
    # Hidden layers take turns on two buffers.
    sizes = {"in": 0, "even": 0, "odd": 0, "out": network.out_features}
    source, read = "in", "  (void)x;\n"
    places: NDArray[np.int64] | None = None
    if layers[0][0] == 0 and layers[0][1].nnz:
        given, places, sizes["in"] = _reading(network, upper)
        text.append(given)
        read = _where_transposed("read_rows(x, in)", "  read_some(x, rows, in);\n", network.in_features >= _WINDOW)
    calls: list[str] = []
    for i, layer in layers:
        target = "out" if i == layers[-1][0] else "even" if i % 2 == 0 else "odd"
        sizes[target] = max(sizes[target], layer.rows)
        functions = _parts(i, layer, places if i == 0 else None)
        text += [f"\n/* Layer {i}: {layer.cols} to {layer.rows} units, {layer.nnz} weights. */\n", *functions]
        takes = f"{source}, " if layer.nnz else ""
        calls += [f"  layer_{i}_{part}({takes}{target});\n" for part in range(len(functions))]
        source = target
    if network.out_features >= 4:
        text.append(_WRITE_ROWS.format(upper=upper))
    text.append(
        _PREDICT.format(
            name=name, upper=upper, read=read, parts="".join(calls),
            write=_where_transposed("write_rows(out, y)", "", network.out_features >= 4),
            units=", ".join(f"{buffer}[{size}]" for buffer, size in sizes.items() if size),
        )
    )  # fmt: skip
    return "".join(text)


def _where_transposed(fast: str, otherwise: str, possible: bool) -> str:
    """Code for whole vectors of rows, and for all else."""
    if not possible:
        return otherwise
    return f"#ifdef TRANSPOSED\n  if (rows == VECTOR)\n    {fast};\n  else\n#endif\n{otherwise}"


def _reading(network: SparseNetwork, upper: str) -> tuple[str, NDArray[np.int64], int]:
    """The functions that read inputs, the unit that each of them becomes, and how many units there are."""
    inputs, text = network.inputs, ""
    places, units = np.arange(inputs.size), inputs.size
    if network.in_features >= _WINDOW:
        columns, first_units, places = windows_of(inputs, network.in_features)
        units = int(first_units[-1]) + _WINDOW
        tables = indices("window_columns", columns) + indices("window_units", first_units)
        text = _READ_ROWS.format(upper=upper, tables=tables, windows=columns.size)
    tables = indices("input_columns", inputs) + indices("input_units", places)
    return text + _READ_SOME.format(upper=upper, tables=tables, count=inputs.size), places, units


def _parts(i: int, layer: SparseLayer, places: NDArray[np.int64] | None) -> list[str]:
    """y[row] = relu(bias[row] + sum of weight * x[unit]), a function for every few hundred weights.

    ``places``: units of the layer's columns; None: the columns themselves.
    """
    parts: list[str] = []
    lines: list[str] = []
    weights: list[float] = []

    def finish() -> None:
        part = f"{i}_{len(parts)}"
        table = floats(f"weights_{part}", np.array([*weights, *[0.0] * (-len(weights) % 4)], np.float32))
        head = f"OUT_OF_LINE static void layer_{part}({'const unit *x, ' if layer.nnz else ''}unit *y) {{\n"
        if weights:
            head += f"  const float *weights = weights_{part};\n  four_weights w;\n"
        head += "  vector s, s1, s2, s3;\n" if any("s3" in line for line in lines) else "  vector s;\n"
        head += ("  HIDDEN(weights);\n" if weights else "  (void)x;\n" if layer.nnz else "")
        parts.append(f"{table}{head}{''.join(lines)}}}\n")
        lines.clear()
        weights.clear()

    for row in range(layer.rows):
        at = slice(layer.row_offsets[row], layer.row_offsets[row + 1])
        columns = layer.columns[at] if places is None else places[layer.columns[at]]
        lines.append(f"  s = spread({float_literal(layer.bias_mean[row])});\n")
        sums = ["s", "s1", "s2", "s3"] if columns.size >= _LONG else ["s"]
        lines += [f"  {name} = spread(0.0f);\n" for name in sums[1:]]
        for column, weight in zip(columns.tolist(), layer.mean[at].tolist()):
            if len(weights) % 4 == 0:
                lines.append(f"  w = FOUR(weights + {len(weights)});\n")
            k = len(weights) % 4
            lines.append(f"  {sums[k % len(sums)]} = TIMES({sums[k % len(sums)]}, w, {k}, x[{column}].v);\n")
            weights.append(weight)
        total = "PLUS(PLUS(s, s1), PLUS(s2, s3))" if len(sums) > 1 else "s"
        lines.append(f"  y[{row}].v = {f'positive({total})' if layer.relu else total};\n")
        if len(lines) >= _PART:
            finish()
    if lines:
        finish()
    return parts
