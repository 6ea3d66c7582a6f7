// Layers of a fixed structure: only kept weights are stored, and only they cost anything.
//
// Activations lie with the batch in the lanes, [units][width] for a panel of up to kMostWidth observations,
// so that a weight is one number that multiplies a few vectors, wherever in the matrix it stands:
//
//   mean[n] = b[n] + sum_j m_j x[col_j],   var[n] = vb[n] + sum_j v_j x[col_j]^2           (by rows)
//   y[n]    = mean[n] + eps std,           std = sqrt(max(var[n], kMinVariance))
// and back, for column k with x = x[k], over the weights j that stand in it                (by columns)
//   d m_j = <dmean[row_j], x>,             d v_j = <dvar[row_j], x^2>
//   dx    = sum_j m_j dmean[row_j] + 2 x sum_j v_j dvar[row_j].
// Without variances (drawn weights, or means) all that belongs to var is left out.
#pragma once

#include <cstdint>

#include "backward_rows.h"
#include "fixed_support.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Vectors of a panel that are worked on together: sums of both products stay in registers.
template <class V>
constexpr int kMostVectors = V::kLanes == 16 ? 7 : 4;

template <class V>
constexpr int64_t kTileWidth = kMostVectors<V> * V::kLanes;

// Rows of the noise's counters for a vector of the batch: lane i is observation first + i.
template <class V>
struct BatchCounters {
  typename V::Word even, odd;
  explicit BatchCounters(uint32_t first) {
    static_assert(2 * V::kCounters == V::kLanes, "two counters fill a lane each");
    alignas(64) uint64_t rows[2][V::kCounters];
    for (int i = 0; i < V::kCounters; ++i) {
      rows[0][i] = first + 2 * i;
      rows[1][i] = first + 2 * i + 1;
    }
    even = V::words(rows[0]);
    odd = V::words(rows[1]);
  }
};

// Philox as in common/philox_vec.h, but for counters whose second word, the row, differs from lane to lane.
// word[i] = the i-th word of every counter.
template <class V, int kUnits>
FL_INLINE void philox_of_rows(const PhiloxKey& key, uint32_t first, const typename V::Word* rows,
                              uint32_t stream, uint32_t sample, typename V::Word (*word)[kUnits]) {
  using W = typename V::Word;
  const W m0 = V::word(kPhiloxM0), m1 = V::word(kPhiloxM1);
  const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * first;
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * stream;
  const uint32_t third =
      static_cast<uint32_t>(p0 >> 32) ^ sample ^ static_cast<uint32_t>(key.high[0]);
#pragma GCC unroll 4
  for (int j = 0; j < kUnits; ++j) {
    word[0][j] = V::xor3(V::word(p1 >> 32), rows[j], V::word(key.low[0]));
    word[1][j] = V::word(static_cast<uint32_t>(p1));
    word[2][j] = V::word(third);
    word[3][j] = V::word(static_cast<uint32_t>(p0));
  }
#pragma GCC unroll 9
  for (int round = 1; round < 10; ++round) {
#pragma GCC unroll 4
    for (int j = 0; j < kUnits; ++j) {
      const W s0 = V::product(m0, word[0][j]), s1 = V::product(m1, word[2][j]);
      word[0][j] = V::xor3(V::high(s1), word[1][j], V::word(key.low[round]));
      word[1][j] = s1;
      word[2][j] = V::xor3(V::high(s0), word[3][j], V::word(key.high[round]));
      word[3][j] = s0;
    }
  }
}

// eps[u][...] = standard normals of units 4 group + u for observations first, first + 1, ... , `width` of them.
template <class V>
__attribute__((noinline)) void normals_of_batch(const Draw& draw, int64_t group, int64_t first,
                                                int64_t width, float (*eps)[kMostWidth]) {
  for (int64_t b = 0; b < width; b += V::kLanes) {
    const BatchCounters<V> rows(static_cast<uint32_t>(first + b));
    const typename V::Word counters[2] = {rows.even, rows.odd};
    typename V::Word word[4][2];
    philox_of_rows<V, 2>(draw.key, static_cast<uint32_t>(group), counters,
                         static_cast<uint32_t>(draw.stream), draw.sample, word);
#pragma GCC unroll 2
    for (int pair = 0; pair < 4; pair += 2) {
      typename V::F even, odd;
      box_muller<V>(V::pack(word[pair][0], word[pair][1]),
                    V::pack(word[pair + 1][0], word[pair + 1][1]), &even, &odd);
      V::store(eps[pair] + b, even);
      V::store(eps[pair + 1] + b, odd);
    }
  }
}

// Where a weight stands is known long before it is its turn: what it multiplies is asked for so many weights
// ahead. Every other line; processors bring the neighbour.
constexpr int64_t kFetched = 4;

template <class V, int N>
FL_INLINE void prefetch_tile(const float* p) {
#pragma GCC unroll 8
  for (int i = 0; i < N; i += 32 / V::kLanes) __builtin_prefetch(p + i * V::kLanes);
}

// Weights whose products are added up by themselves: of a long row one sum alone would lose digits.
constexpr int64_t kRunOfWeights = 64;

// Both products of one row for N vectors of the batch.
template <class V, int N, bool kVar>
FL_INLINE void products_of_row(const Support& s, const FixedForward& f, int64_t row, int64_t first,
                               typename V::F* mean, typename V::F* var) {
  using F = typename V::F;
  const F bias = V::set1(f.bias_mean ? f.bias_mean[row] : 0.0f), zero = V::set1(0.0f);
  const F bias_var = V::set1(kVar && f.bias_var ? f.bias_var[row] : 0.0f);
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    mean[i] = bias;
    var[i] = bias_var;
  }
  const int64_t width = f.width, end = s.row_offsets[row + 1];
  for (int64_t j = s.row_offsets[row]; j < end;) {
    const int64_t run = j + kRunOfWeights < end ? j + kRunOfWeights : end;
    F some_mean[N], some_var[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) some_mean[i] = some_var[i] = zero;
    for (; j < run; ++j) {
      const float* x = f.x + s.columns[j] * width + first;
      prefetch_tile<V, N>(f.x + s.columns[j + kFetched < s.count ? j + kFetched : j] * width + first);
      const F m = V::set1(f.weights[kVar ? 2 * j : j]), v = V::set1(kVar ? f.weights[2 * j + 1] : 0.0f);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        const F value = V::once(V::load(x + i * V::kLanes));
        some_mean[i] = V::fma(m, value, some_mean[i]);
        if (kVar) some_var[i] = V::fma(V::mul(v, value), value, some_var[i]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      mean[i] = V::add(mean[i], some_mean[i]);
      if (kVar) var[i] = V::add(var[i], some_var[i]);
    }
  }
}

template <class V, int N, bool kVar>
FL_INLINE void forward_of_tile(const Support& s, const FixedForward& f, int64_t row, int64_t first,
                               const float* eps) {
  using F = typename V::F;
  const F floor = V::set1(kMinVariance), half = V::set1(0.5f), zero = V::set1(0.0f);
  F mean[N], var[N];
  products_of_row<V, N, kVar>(s, f, row, first, mean, var);
  const int64_t offset = row * f.width + first;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    F y = mean[i];
    if (kVar) {
      const F std = V::sqrt(V::max(var[i], floor)), e = V::load(eps + first + i * V::kLanes);
      y = V::fma(e, std, y);
      const F ratio = V::div(V::mul(e, half), std);
      V::store(f.half_ratio + offset + i * V::kLanes, V::select(V::lt(var[i], floor), zero, ratio));
    }
    if (f.relu) y = V::select(V::lt(y, zero), zero, y);
    V::store(f.y + offset + i * V::kLanes, y);
  }
}

// body(first, count of vectors as a type) for the tiles of a panel of `width` observations.
template <int N>
struct Count {
  static constexpr int value = N;
};

template <class V, class Body>
FL_INLINE void for_tiles(int64_t width, const Body& body) {
  constexpr int most = kMostVectors<V>;
  int64_t first = 0;
  for (; first + most * V::kLanes <= width; first += most * V::kLanes) body(first, Count<most>{});
  // What is left is fewer; widths are whole units, so for short vectors nothing is.
  const auto rest = [&](auto n) FL_ALWAYS {
    if constexpr (decltype(n)::value < most) {
      if ((width - first) / V::kLanes == decltype(n)::value) body(first, n);
    }
  };
  if (first == width) return;
  if constexpr (V::kLanes == 16) {
    rest(Count<6>{}), rest(Count<5>{}), rest(Count<4>{}), rest(Count<3>{}), rest(Count<1>{});
  }
  if constexpr (V::kLanes >= 8) rest(Count<2>{});
}

// Rows [begin, end) of one panel; begin is a multiple of 4, whose noise is made together.
template <class V>
void fixed_forward_rows(const Support& s, const Draw& draw, int64_t begin, int64_t end,
                        const FixedForward& f) {
  alignas(64) float eps[4][kMostWidth];
  if (f.half_ratio) {
    for (int64_t group = begin; group < end; group += 4) {
      normals_of_batch<V>(draw, group / 4, f.first_row, f.width, eps);
      for (int64_t row = group; row < group + 4 && row < end; ++row) {
        for_tiles<V>(f.width, [&](int64_t first, auto n) FL_ALWAYS {
          forward_of_tile<V, decltype(n)::value, true>(s, f, row, first, eps[row - group]);
        });
      }
    }
    return;
  }
  for (int64_t row = begin; row < end; ++row) {
    for_tiles<V>(f.width, [&](int64_t first, auto n) FL_ALWAYS {
      forward_of_tile<V, decltype(n)::value, false>(s, f, row, first, nullptr);
    });
  }
}

// One column for N vectors of the batch, with the gradients of its weights in dw.
template <class V, int N, bool kVar, bool kInput>
FL_INLINE void backward_of_tile(const Support& s, const FixedBackward& b, int64_t column, int64_t first) {
  using F = typename V::F;
  const int64_t width = b.width, offset = column * width + first;
  const F zero = V::set1(0.0f);
  const bool add = b.add || first > 0;
  F x[N], x2[N], through_mean[N], through_var[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    x[i] = V::load(b.x + offset + i * V::kLanes);
    x2[i] = V::mul(x[i], x[i]);
    through_mean[i] = through_var[i] = zero;
  }
  const int64_t end = s.col_offsets[column + 1];
  for (int64_t j = s.col_offsets[column]; j < end;) {
    const int64_t run = j + kRunOfWeights < end ? j + kRunOfWeights : end;
    F some_mean[N], some_var[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) some_mean[i] = some_var[i] = zero;
    for (; j < run; ++j) {
      const int64_t row = s.rows_of[j] * width + first;
      const float *dmean = b.dmean + row, *dvar = kVar ? b.dvar + row : nullptr;
      const F m = V::set1(kInput ? b.weights[kVar ? 2 * j : j] : 0.0f);
      const F v = V::set1(kInput && kVar ? b.weights[2 * j + 1] : 0.0f);
      const int64_t ahead = s.rows_of[j + kFetched < s.count ? j + kFetched : j] * width + first;
      prefetch_tile<V, N>(b.dmean + ahead);
      if (kVar) prefetch_tile<V, N>(b.dvar + ahead);
      F dm = zero, dv = zero;
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        const F up = V::once(V::load(dmean + i * V::kLanes));
        dm = V::fma(up, x[i], dm);
        if (kInput) some_mean[i] = V::fma(m, up, some_mean[i]);
        if (kVar) {
          const F up_var = V::once(V::load(dvar + i * V::kLanes));
          dv = V::fma(up_var, x2[i], dv);
          if (kInput) some_var[i] = V::fma(v, up_var, some_var[i]);
        }
      }
      if (kVar) {
        float sum, sum_var;
        V::sums(dm, dv, &sum, &sum_var);
        b.dw[2 * j] = add ? b.dw[2 * j] + sum : sum;
        b.dw[2 * j + 1] = add ? b.dw[2 * j + 1] + sum_var : sum_var;
      } else {
        const float sum = V::fast_sum(dm);
        b.dw[j] = add ? b.dw[j] + sum : sum;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; kInput && i < N; ++i) {
      through_mean[i] = V::add(through_mean[i], some_mean[i]);
      if (kVar) through_var[i] = V::add(through_var[i], some_var[i]);
    }
  }
  if (!kInput) return;
  const F two = V::set1(2.0f);
  F bias = zero, bias_var = zero;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    const int64_t at = offset + i * V::kLanes;
    F dx = through_mean[i];
    if (kVar) dx = V::fma(V::mul(two, x[i]), through_var[i], dx);
    if (b.relu) dx = V::select(V::lt(zero, x[i]), dx, zero);
    V::store(b.dx + at, dx);
    bias = V::add(bias, dx);
    if (kVar && b.half_ratio) {
      const F through = V::mul(dx, V::load(b.half_ratio + at));
      V::store(b.dx_var + at, through);
      bias_var = V::add(bias_var, through);
    }
  }
  if (!b.db) return;
  float sum, sum_var;
  V::sums(bias, bias_var, &sum, &sum_var);
  b.db[column] += sum;
  b.db_var[column] += sum_var;
}

template <class V, bool kVar, bool kInput>
void fixed_backward(const Support& s, int64_t begin, int64_t end, const FixedBackward& b) {
  for (int64_t column = begin; column < end; ++column) {
    if (!kInput && s.col_offsets[column] == s.col_offsets[column + 1]) continue;
    for_tiles<V>(b.width, [&](int64_t first, auto n) FL_ALWAYS {
      backward_of_tile<V, decltype(n)::value, kVar, kInput>(s, b, column, first);
    });
  }
}

// Columns [begin, end) of one panel.
template <class V>
void fixed_backward_columns(const Support& s, int64_t begin, int64_t end, const FixedBackward& b) {
  if (b.dvar) {
    b.dx ? fixed_backward<V, true, true>(s, begin, end, b) : fixed_backward<V, true, false>(s, begin, end, b);
  } else {
    b.dx ? fixed_backward<V, false, true>(s, begin, end, b) : fixed_backward<V, false, false>(s, begin, end, b);
  }
}

// w = mean + tau eps for the kept weights of rows [begin, end), with the noise of the weight's place.
template <class V>
void fixed_draw_rows(const Support& s, const Draw& draw, int64_t begin, int64_t end, const float* mean,
                     const float* rho, float* w, float* eps) {
  alignas(64) float decay[kChunk + 64];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t j = s.row_offsets[row]; j < s.row_offsets[row + 1]; j += V::kCounters) {
      const int64_t left = s.row_offsets[row + 1] - j;
      const int count = left < V::kCounters ? static_cast<int>(left) : V::kCounters;
      uint64_t counters[V::kCounters] = {};
      for (int i = 0; i < count; ++i) counters[i] = static_cast<uint64_t>(s.columns[j + i] / 4);
      const typename V::Word first = V::words(counters);
      typename V::I even, odd;
      philox_rounds<V, 1>(draw.key, &first, static_cast<uint32_t>(row),
                          static_cast<uint32_t>(draw.stream), draw.sample, &even, &odd);
      float normal[2][V::kLanes];
      typename V::F one, other;
      box_muller<V>(even, odd, &one, &other);
      V::store(normal[0], one);
      V::store(normal[1], other);
      for (int i = 0; i < count; ++i) {
        const int32_t column = s.columns[j + i];
        eps[j + i] = normal[column % 2][2 * i + (column % 4) / 2];
      }
    }
  }
  const int64_t last = s.row_offsets[end];
  for (int64_t j = s.row_offsets[begin]; j < last; j += kChunk) {
    const int64_t n = last - j < kChunk ? last - j : kChunk;
    decay_of_columns<V>(rho + j, n, decay);
    for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
      const Scale<V> scale = scale_from_decay<V, false>(lanes.load(rho + j + k), V::load(decay + k));
      lanes.store(w + j + k, V::fma(scale.tau, lanes.load(eps + j + k), lanes.load(mean + j + k)));
    });
  }
}

// Gradients of one row of weights without indicators that were drawn `samples` times: dw and eps of draw s
// stand `stride` after those of the draw before.
template <class V>
void drawn_backward_row(const Posterior& q, int64_t samples, const float* dw, const float* eps,
                        int64_t stride, const SumGradients& sum_grads, const GradientSink& sink) {
  const Coefficients<V> c(sum_grads);
  Run<V> run(sink);
  const DrawRow d{samples, stride, stride, 0, dw, eps};
  backward_plain_row<V, false>(q, 0, d, c, nullptr, nullptr, 0, nullptr, nullptr, &run);
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
