// Sampled weights by rows times a few observations: the samples are the vector dimension.
#pragma once

#include <cstdint>

#include "../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// B observations: a weight's samples are loaded once for all of them. kShared: x is the same for all
// samples, x[column]; else there are kLanes floats a column.
template <class V, int B, bool kShared, class Column>
void sampled_columns(const sparse::SampledRows& a, const Column* columns) {
  using F = typename V::F;
  // A sum alone would wait for its own additions.
  constexpr int S = 4 / B;
  for (int64_t row = 0; row < a.matrix.rows; ++row) {
    F sum[B][S];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      sum[b][0] = V::load(a.bias + row * a.stride, a.samples);
#pragma GCC unroll 4
      for (int s = 1; s < S; ++s) sum[b][s] = V::set1(0.0f);
    }
    const auto add = [&](int64_t i, int s) FL_ALWAYS {
      const F w = V::load(a.values + i * a.stride, a.samples);
      const int64_t column = columns[i];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) {
        const float* x = a.x + b * a.x_step;
        sum[b][s] = V::fma(w, kShared ? V::set1(x[column]) : V::load(x + column * V::kLanes), sum[b][s]);
      }
    };
    int64_t i = a.matrix.offsets[row];
    const int64_t end = a.matrix.offsets[row + 1];
    for (; i + S <= end; i += S) {
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) add(i + s, s);
    }
    for (; i < end; ++i) add(i, 0);
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      F y = sum[b][0];
      if (S == 2) y = V::add(y, sum[b][S - 1]);
      if (S == 4) y = V::add(V::add(y, sum[b][1 % S]), V::add(sum[b][2 % S], sum[b][S - 1]));
      // Zero comes first: a NaN then stays one.
      if (a.relu) y = V::max(V::set1(0.0f), y);
      V::store(a.y + b * a.y_step + row * V::kLanes, y);
    }
  }
}

template <class V, int B, bool kShared>
void sampled_any_columns(const sparse::SampledRows& a) {
  const sparse::Columns& c = a.matrix.columns;
  if (c.bytes == 2) {
    sampled_columns<V, B, kShared>(a, static_cast<const uint16_t*>(c.data));
  } else {
    sampled_columns<V, B, kShared>(a, static_cast<const int32_t*>(c.data));
  }
}

template <class V>
void spmv_sampled(const sparse::SampledRows& a) {
  switch (a.observations) {
    case 1: return a.shared ? sampled_any_columns<V, 1, true>(a) : sampled_any_columns<V, 1, false>(a);
    case 2: return a.shared ? sampled_any_columns<V, 2, true>(a) : sampled_any_columns<V, 2, false>(a);
    default: return a.shared ? sampled_any_columns<V, 4, true>(a) : sampled_any_columns<V, 4, false>(a);
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
