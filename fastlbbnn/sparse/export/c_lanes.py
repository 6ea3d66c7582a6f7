"""The vector form of the C export: a network as straight-line code over many rows of a batch at a time.

Vectors hold one unit of 4, 8 or 16 rows of the batch, side by side. A weight is one multiplication and addition
of two of them, with its value and its places in the code: nothing is looked up, and nothing is decided. What a
vector is the source says in three ways: AVX-512, the vectors of GCC and Clang, plain arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..network import SparseLayer, SparseNetwork
from .c_text import float_literal, indices
from .naming import layers_with_effect

#: Weights of a function: for twice the length compilers take more than twice the time.
_PART = 400

#: Columns that are read together: 16 bytes of a row.
_WINDOW = 4

#: Vectors of a unit, so that a weight is fetched once for all of them. Measured: two beat one by a quarter at
#: 1,000 weights; four leave the first-level cache.
_VECTORS = 2

_TYPES = """\
/* VECTOR rows of the batch, side by side. Compile with optimisation, for the processor that it runs on (-O2
 * -march=native). {upper}_PORTABLE leaves out all that is not C99. */
#if defined(__AVX512F__) && !defined({upper}_PORTABLE)
#include <immintrin.h>
#define VECTOR 16
#define OUT_OF_LINE __attribute__((noinline))
typedef __m512 vector;
static inline vector spread(float a) {{ return _mm512_set1_ps(a); }}
static inline vector times(vector sum, float w, vector x) {{
  return _mm512_fmadd_ps(_mm512_set1_ps(w), x, sum);
}}
/* NaN passes: of two that cannot be compared the second is taken. */
static inline vector positive(vector a) {{ return _mm512_max_ps(_mm512_setzero_ps(), a); }}
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
static inline vector times(vector sum, float w, vector x) {{ return sum + w * x; }}
static inline vector positive(vector a) {{
  return (vector)((integers)a & ~(integers)(a < (vector){{0.0f}}));
}}
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
static inline vector times(vector sum, float w, vector x) {{
  int i;
  for (i = 0; i < VECTOR; ++i) sum.at[i] += w * x.at[i];
  return sum;
}}
static inline vector positive(vector a) {{
  int i;
  for (i = 0; i < VECTOR; ++i) a.at[i] = a.at[i] < 0.0f ? 0.0f : a.at[i];
  return a;
}}
#endif

/* One unit of all rows that are computed together, and what a sum of it is made in. */
#define ROWS ({vectors} * VECTOR)
typedef union {{ vector v[{vectors}]; float at[ROWS]; }} unit;
typedef struct {{ vector {fields}; }} sums;
static inline sums begin(float bias) {{
  const vector b = spread(bias);
  const sums s = {{{begin}}};
  return s;
}}
static inline sums add(sums s, float w, const unit *x) {{
{add}  return s;
}}
static inline void end(unit *y, sums s) {{
{end}}}
static inline void end_positive(unit *y, sums s) {{
{end_positive}}}
"""

#: The squares of 4 columns are transposed in registers. `to` is VECTOR rows of unit `t` of a row of units.
_WINDOWS = """
/* Four columns of VECTOR rows, transposed. */
#if defined(__AVX512F__) && !defined({upper}_PORTABLE)
#define WINDOWS
static inline vector quarters(const float *x) {{
  vector r = _mm512_castps128_ps512(_mm_loadu_ps(x));
  r = _mm512_insertf32x4(r, _mm_loadu_ps(x + 4 * (size_t){upper}_INPUTS), 1);
  r = _mm512_insertf32x4(r, _mm_loadu_ps(x + 8 * (size_t){upper}_INPUTS), 2);
  return _mm512_insertf32x4(r, _mm_loadu_ps(x + 12 * (size_t){upper}_INPUTS), 3);
}}
#define LOW(a, b) _mm512_unpacklo_ps(a, b)
#define HIGH(a, b) _mm512_unpackhi_ps(a, b)
#define FIRST(a, b) _mm512_shuffle_ps(a, b, 0x44)
#define SECOND(a, b) _mm512_shuffle_ps(a, b, 0xEE)
#elif defined(__has_builtin) && !defined({upper}_PORTABLE)
#if __has_builtin(__builtin_shufflevector)
#define WINDOWS
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#if VECTOR == 8
static inline vector quarters(const float *x) {{
  const four a = *(const four *)x, b = *(const four *)(x + 4 * (size_t){upper}_INPUTS);
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
}}
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
static inline vector quarters(const float *x) {{ return *(const four *)x; }}
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif
#endif
#endif

#ifdef WINDOWS
{tables}
/* Of ROWS rows. What a window writes beyond its last input, the next one overwrites. */
static void read_rows(const float *x, unit *in) {{
  size_t i, t;
  for (i = 0; i < {windows}; ++i) {{
    unit *to = in + window_units[i];
    for (t = 0; t < {vectors}; ++t) {{
      const float *from = x + window_columns[i] + t * VECTOR * (size_t){upper}_INPUTS;
      const vector a = quarters(from), b = quarters(from + {upper}_INPUTS);
      const vector c = quarters(from + 2 * (size_t){upper}_INPUTS);
      const vector d = quarters(from + 3 * (size_t){upper}_INPUTS);
      const vector ab = LOW(a, b), cd = LOW(c, d), ab2 = HIGH(a, b), cd2 = HIGH(c, d);
      to[0].v[t] = FIRST(ab, cd);
      to[1].v[t] = SECOND(ab, cd);
      to[2].v[t] = FIRST(ab2, cd2);
      to[3].v[t] = SECOND(ab2, cd2);
    }}
  }}
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
    end(to, begin(0.0f));
    for (row = 0; row < rows; ++row) to->at[row] = x[row * {upper}_INPUTS + input_columns[i]];
  }}
}}
"""

_PREDICT = """
/* Of 1 to ROWS rows. */
static void predict_rows(const float *x, float *y, size_t rows) {{
  unit {units};
  size_t i, row;
{read}{parts}  for (row = 0; row < rows; ++row)
    for (i = 0; i < {upper}_OUTPUTS; ++i) y[row * {upper}_OUTPUTS + i] = {last}[i].at[row];
}}

void {name}_predict_batch(const float *x, float *y, size_t batch) {{
  size_t i;
  for (i = 0; i < batch; i += ROWS) {{
    /* The last rows are computed together with some that are known already. */
    if (batch >= ROWS && batch - i < ROWS) i = batch - ROWS;
    predict_rows(x + i * {upper}_INPUTS, y + i * {upper}_OUTPUTS, batch - i < ROWS ? batch - i : ROWS);
  }}
}}

void {name}_predict(const float *x, float *y) {{ predict_rows(x, y, 1); }}
"""


def windows_of(inputs: NDArray[np.int32], in_features: int) -> tuple[NDArray[np.int64], ...]:
    """How inputs are read, four neighbouring columns at a time.

    Returns the first column of every window, the unit that it becomes, and the unit of every input. Needs
    ``in_features >= 4``.
    """
    columns: list[int] = []
    units: list[int] = []
    places = np.empty(inputs.size, np.int64)
    i, free = 0, 0
    while i < inputs.size:
        first = min(int(inputs[i]), in_features - _WINDOW)
        last = int(np.searchsorted(inputs, first + _WINDOW))
        # (A window that is moved to the left begins with columns that nobody wants, or has already.)
        columns.append(first)
        units.append(free)
        places[i:last] = free + inputs[i:last] - first
        free = int(places[last - 1]) + 1
        i = last
    return np.array(columns, np.int64), np.array(units, np.int64), places


def lanes_source(network: SparseNetwork, name: str, vectors: int = _VECTORS) -> str:
    """The source but for the preparation; see ``export_c``."""
    layers = layers_with_effect(network)
    upper, each = name.upper(), range(vectors)
    text = [
        f'#include "{name}.h"\n\n#include <stdint.h>\n\n',
        _TYPES.format(
            upper=upper, vectors=vectors, fields=", ".join(f"v{t}" for t in each),
            begin=", ".join("b" for _ in each),
            add="".join(f"  s.v{t} = times(s.v{t}, w, x->v[{t}]);\n" for t in each),
            end="".join(f"  y->v[{t}] = s.v{t};\n" for t in each),
            end_positive="".join(f"  y->v[{t}] = positive(s.v{t});\n" for t in each),
        ),
    ]  # fmt: skip
    # Hidden layers take turns on two buffers.
    sizes = {"even": 0, "odd": 0, "out": network.out_features}
    source, places, read = "in", None, "  (void)x;\n"
    if layers[0][0] == 0 and layers[0][1].nnz:
        given, places, units = _reading(network, upper, vectors)
        text.append(given)
        sizes["in"] = units
        read = "  read_some(x, rows, in);\n"
        if network.in_features >= _WINDOW:
            read = (
                "#ifdef WINDOWS\n  if (rows == ROWS) read_rows(x, in); else\n#endif\n"
                "  read_some(x, rows, in);\n"
            )
    calls: list[str] = []
    for i, layer in layers:
        target = "out" if i == layers[-1][0] else "even" if i % 2 == 0 else "odd"
        sizes[target] = max(sizes[target], layer.rows)
        functions = _parts(i, layer, places if i == 0 else None)
        text += [f"\n/* Layer {i}: {layer.cols} to {layer.rows} units, {layer.nnz} weights. */\n", *functions]
        takes = f"{source}, " if layer.nnz else ""
        calls += [f"  layer_{i}_{part}({takes}{target});\n" for part in range(len(functions))]
        source = target
    text.append(
        _PREDICT.format(
            name=name, upper=upper, read=read, parts="".join(calls), last="out",
            units=", ".join(f"{buffer}[{size}]" for buffer, size in sizes.items() if size),
        )
    )  # fmt: skip
    return "".join(text)


def _reading(network: SparseNetwork, upper: str, vectors: int) -> tuple[str, NDArray[np.int64], int]:
    """The functions that read inputs, the unit that each of them becomes, and how many units there are."""
    inputs, text = network.inputs, ""
    places, units = np.arange(inputs.size), inputs.size
    if network.in_features >= _WINDOW:
        columns, first_units, places = windows_of(inputs, network.in_features)
        units = int(first_units[-1]) + _WINDOW
        tables = indices("window_columns", columns) + indices("window_units", first_units)
        text = _WINDOWS.format(upper=upper, tables=tables, windows=columns.size, vectors=vectors)
    tables = indices("input_columns", inputs) + indices("input_units", places)
    return text + _READ_SOME.format(upper=upper, tables=tables, count=inputs.size), places, units


def _parts(i: int, layer: SparseLayer, places: NDArray[np.int64] | None) -> list[str]:
    """y[row] = relu(bias[row] + sum of weight * x[unit]), a function for every few hundred weights.

    ``places``: units of the layer's columns; None: the columns themselves.
    """
    parts: list[str] = []
    lines: list[str] = []
    weights = 0
    takes = "const unit *x, " if layer.nnz else ""
    # (A part of rows without weights would not use x.)
    unused = "  (void)x;\n" if layer.nnz else ""

    def finish() -> None:
        head = f"OUT_OF_LINE static void layer_{i}_{len(parts)}({takes}unit *y) {{\n  sums s;\n{unused}"
        parts.append(head + "".join(lines) + "}\n")
        lines.clear()

    for row in range(layer.rows):
        at = slice(layer.row_offsets[row], layer.row_offsets[row + 1])
        columns = layer.columns[at] if places is None else places[layer.columns[at]]
        lines.append(f"  s = begin({float_literal(layer.bias_mean[row])});\n")
        lines += [
            f"  s = add(s, {float_literal(w)}, x + {c});\n" for c, w in zip(columns.tolist(), layer.mean[at].tolist())
        ]
        lines.append(f"  {'end_positive' if layer.relu else 'end'}(y + {row}, s);\n")
        weights += columns.size + 1
        if weights >= _PART:
            finish()
            weights = 0
    if lines:
        finish()
    return parts
