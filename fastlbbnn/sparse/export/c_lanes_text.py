"""What stays the same in the vector form of the C export (c_lanes.py), as templates for ``str.format``.

Vectors are of three kinds, of which the compiler takes the first that it has: AVX-512, the vectors of GCC and
Clang, plain arrays. Rows and units are transposed in registers by the first two.
"""

TYPES = """\
/* Rows of the batch are computed side by side, two vectors of them at a time. Compile with optimisation, for
 * the processor that it runs on (-O2 -march=native). {upper}_PORTABLE leaves out all that is not C99. */
#if defined(__AVX512F__) && !defined({upper}_PORTABLE)
#include <immintrin.h>
#define VECTOR 16
#define OUT_OF_LINE __attribute__((noinline))
typedef __m512 vector;
static inline vector spread(float a) {{ return _mm512_set1_ps(a); }}
/* NaN passes: of two that cannot be compared the second is taken. */
static inline vector positive(vector a) {{ return _mm512_max_ps(_mm512_setzero_ps(), a); }}
/* Loads are what a cycle has fewest of: four weights are one of them, and told apart in registers, which
 * compilers would not do with constants. */
typedef __m512 four_weights;
#define HIDDEN(weights) __asm__("" : "+r"(weights))
#define FOUR(weights) _mm512_broadcast_f32x4(_mm_loadu_ps(weights))
#define ONE(w, k) _mm512_permute_ps(w, (k) * 0x55)
#define TIMES(sum, one, x) _mm512_fmadd_ps(one, x, sum)
#define PLUS(a, b) _mm512_add_ps(a, b)
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
#define TIMES(sum, one, x) ((sum) + (one) * (x))
#define PLUS(a, b) ((a) + (b))
#else
#define VECTOR 16
#define OUT_OF_LINE
#endif
#ifndef FOUR
typedef const float *four_weights;
#define HIDDEN(weights) (void)(weights)
#define FOUR(weights) (weights)
#define ONE(w, k) (w)[k]
#endif

/* One unit of the rows that are computed together, and sums of it. */
#define ROWS (2 * VECTOR)
#ifdef PLUS
typedef union {{ vector v[2]; float at[ROWS]; }} unit;
#define SUM(s) vector s##_0, s##_1
#define SET(s, a) (s##_0 = s##_1 = spread(a))
#define GET(s, x) (s##_0 = (x).v[0], s##_1 = (x).v[1])
#define ADD(s, w, k, x) \\
  (s##_0 = TIMES(s##_0, ONE(w, k), (x).v[0]), s##_1 = TIMES(s##_1, ONE(w, k), (x).v[1]))
#define JOIN(s, t) (s##_0 = PLUS(s##_0, t##_0), s##_1 = PLUS(s##_1, t##_1))
#define POSITIVE(s) (s##_0 = positive(s##_0), s##_1 = positive(s##_1))
#define PUT(y, s) ((y).v[0] = s##_0, (y).v[1] = s##_1)
#else
typedef struct {{ float at[ROWS]; }} unit;
static inline void set(float *s, float a) {{
  int i;
  for (i = 0; i < ROWS; ++i) s[i] = a;
}}
static inline void add(float *s, float w, const float *x) {{
  int i;
  for (i = 0; i < ROWS; ++i) s[i] += w * x[i];
}}
static inline void positive(float *s) {{
  int i;
  for (i = 0; i < ROWS; ++i) s[i] = s[i] < 0.0f ? 0.0f : s[i];
}}
#define SUM(s) unit s
#define SET(s, a) set((s).at, a)
#define GET(s, x) ((s) = (x))
#define ADD(s, w, k, x) add((s).at, ONE(w, k), (x).at)
#define JOIN(s, t) add((s).at, 1.0f, (t).at)
#define POSITIVE(s) positive((s).at)
#define PUT(y, s) ((y) = (s))
#endif
"""

MACROS = """
/* Where vectors can be transposed in registers: */
#if defined(__AVX512F__) && !defined({upper}_PORTABLE)
#define TRANSPOSED
#define LOW(a, b) _mm512_unpacklo_ps(a, b)
#define HIGH(a, b) _mm512_unpackhi_ps(a, b)
#define FIRST(a, b) _mm512_shuffle_ps(a, b, 0x44)
#define SECOND(a, b) _mm512_shuffle_ps(a, b, 0xEE)
#elif defined(__has_builtin) && !defined({upper}_PORTABLE)
#if __has_builtin(__builtin_shufflevector)
#define TRANSPOSED
typedef float piece __attribute__((vector_size(16), aligned(4), may_alias));
#if VECTOR == 8
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif
#endif
#endif
/* In every four numbers of four vectors rows become columns. */
#define TRANSPOSE(a, b, c, d) do {{ \\
    const vector ab = LOW(a, b), cd = LOW(c, d), ab_high = HIGH(a, b), cd_high = HIGH(c, d); \\
    a = FIRST(ab, cd); \\
    b = SECOND(ab, cd); \\
    c = FIRST(ab_high, cd_high); \\
    d = SECOND(ab_high, cd_high); \\
  }} while (0)
"""

READ_ROWS = """
#ifdef TRANSPOSED
{tables}
/* Eight columns of VECTOR rows. */
#if VECTOR == 16
static inline vector rows_0_and_4(const float *x) {{
  const __m512d low = _mm512_castpd256_pd512(_mm256_castps_pd(_mm256_loadu_ps(x)));
  const __m256d high = _mm256_castps_pd(_mm256_loadu_ps(x + 4 * (size_t){upper}_INPUTS));
  return _mm512_castpd_ps(_mm512_insertf64x4(low, high, 1));
}}
static inline void read_window(const float *x, unit *to, int t) {{
  const size_t next = {upper}_INPUTS;
  vector a = rows_0_and_4(x), b = rows_0_and_4(x + next);
  vector c = rows_0_and_4(x + 2 * next), d = rows_0_and_4(x + 3 * next);
  vector e = rows_0_and_4(x + 8 * next), f = rows_0_and_4(x + 9 * next);
  vector g = rows_0_and_4(x + 10 * next), h = rows_0_and_4(x + 11 * next);
  TRANSPOSE(a, b, c, d);
  TRANSPOSE(e, f, g, h);
  to[0].v[t] = _mm512_shuffle_f32x4(a, e, 0x88);
  to[1].v[t] = _mm512_shuffle_f32x4(b, f, 0x88);
  to[2].v[t] = _mm512_shuffle_f32x4(c, g, 0x88);
  to[3].v[t] = _mm512_shuffle_f32x4(d, h, 0x88);
  to[4].v[t] = _mm512_shuffle_f32x4(a, e, 0xDD);
  to[5].v[t] = _mm512_shuffle_f32x4(b, f, 0xDD);
  to[6].v[t] = _mm512_shuffle_f32x4(c, g, 0xDD);
  to[7].v[t] = _mm512_shuffle_f32x4(d, h, 0xDD);
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
static inline void read_half(const float *x, unit *to, int t) {{
  const size_t next = {upper}_INPUTS;
  vector a = rows_0_and_4(x), b = rows_0_and_4(x + next);
  vector c = rows_0_and_4(x + 2 * next), d = rows_0_and_4(x + 3 * next);
  TRANSPOSE(a, b, c, d);
  to[0].v[t] = a;
  to[1].v[t] = b;
  to[2].v[t] = c;
  to[3].v[t] = d;
}}
static inline void read_window(const float *x, unit *to, int t) {{
  read_half(x, to, t);
  read_half(x + 4, to + 4, t);
}}
#endif

/* Windows of ROWS rows. What one writes beyond its last input, the next one overwrites. */
static void read_rows(const float *x, unit *in, size_t window, size_t end) {{
  for (; window < end; ++window) {{
    const float *from = x + window_columns[window];
    unit *to = in + window_units[window];
    read_window(from, to, 0);
    read_window(from + VECTOR * (size_t){upper}_INPUTS, to, 1);
  }}
}}
#endif
"""

READ_SOME = """
{tables}
/* Inputs of any number of rows. */
static void read_some(const float *x, size_t rows, unit *in, size_t input, size_t end) {{
  size_t row;
  for (; input < end; ++input) {{
    unit *to = in + input_units[input];
    SUM(none);
    SET(none, 0.0f);
    PUT(*to, none);
    for (row = 0; row < rows; ++row) to->at[row] = x[row * {upper}_INPUTS + input_columns[input]];
  }}
}}
"""

WRITE_ROWS = """
#ifdef TRANSPOSED
static inline void store_pieces(float *y, vector a) {{
#if VECTOR == 16
  _mm_storeu_ps(y, _mm512_castps512_ps128(a));
  _mm_storeu_ps(y + 4 * (size_t){upper}_OUTPUTS, _mm512_extractf32x4_ps(a, 1));
  _mm_storeu_ps(y + 8 * (size_t){upper}_OUTPUTS, _mm512_extractf32x4_ps(a, 2));
  _mm_storeu_ps(y + 12 * (size_t){upper}_OUTPUTS, _mm512_extractf32x4_ps(a, 3));
#elif VECTOR == 8
  *(piece *)y = __builtin_shufflevector(a, a, 0, 1, 2, 3);
  *(piece *)(y + 4 * (size_t){upper}_OUTPUTS) = __builtin_shufflevector(a, a, 4, 5, 6, 7);
#else
  *(piece *)y = a;
#endif
}}

/* Of ROWS rows, four outputs at a time; the last four overlap with those before. */
static void write_rows(const unit *out, float *y) {{
  const size_t next = {upper}_OUTPUTS;
  size_t i;
  int t;
  for (t = 0; t < 2; ++t, y += VECTOR * next)
    for (i = 0; i < {upper}_OUTPUTS; i += 4) {{
      vector a, b, c, d;
      if (i + 4 > {upper}_OUTPUTS) i = {upper}_OUTPUTS - 4;
      a = out[i].v[t];
      b = out[i + 1].v[t];
      c = out[i + 2].v[t];
      d = out[i + 3].v[t];
      TRANSPOSE(a, b, c, d);
      store_pieces(y + i, a);
      store_pieces(y + next + i, b);
      store_pieces(y + 2 * next + i, c);
      store_pieces(y + 3 * next + i, d);
    }}
}}
#endif
"""

PREDICT = """
/* Of 1 to ROWS rows. */
static void predict_rows(const float *x, float *y, size_t rows) {{
  unit {buffers};
  size_t i, row;
{code}{write}  for (row = 0; row < rows; ++row)
    for (i = 0; i < {upper}_OUTPUTS; ++i) y[row * {upper}_OUTPUTS + i] = out[i].at[row];
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
