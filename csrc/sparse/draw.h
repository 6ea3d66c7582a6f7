// Sampled weights: mean + scale eps, with the noise of the trained network's weight.
#pragma once

#include <cstdint>

#include "../common/noise.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Groups of counters in flight: one alone would wait for its own ten rounds.
constexpr int kDrawUnits = 4;

// Columns whose noise is made together.
template <class V>
constexpr int kDrawn = kDrawUnits * V::kCounters;

// eps of columns[0 .. count), count <= kDrawn, of one row. A counter yields the normals of four
// neighbouring columns; of scattered columns one of the four is wanted.
template <class V>
FL_INLINE void normals_scattered(const PhiloxKey& key, Stream stream, uint32_t sample, uint32_t row,
                                 const uint32_t* columns, int count, float* eps) {
  uint64_t counters[kDrawn<V>] = {};
  for (int i = 0; i < count; ++i) counters[i] = columns[i] / 4;
  typename V::Word first[kDrawUnits];
  typename V::I even[kDrawUnits], odd[kDrawUnits];
#pragma GCC unroll 4
  for (int u = 0; u < kDrawUnits; ++u) first[u] = V::words(counters + u * V::kCounters);
  philox_rounds<V, kDrawUnits>(key, first, row, static_cast<uint32_t>(stream), sample, even, odd);
  float lanes[2][2 * kDrawn<V>];
#pragma GCC unroll 4
  for (int u = 0; u < kDrawUnits; ++u) {
    typename V::F normal[2];
    box_muller<V>(even[u], odd[u], &normal[0], &normal[1]);
    V::store(lanes[0] + u * V::kLanes, normal[0]);
    V::store(lanes[1] + u * V::kLanes, normal[1]);
  }
  for (int i = 0; i < count; ++i) {
    eps[i] = lanes[columns[i] % 2][2 * i + (columns[i] % 4) / 2];
  }
}

template <class V>
void draw_rows(const sparse::Posterior& q, uint64_t seed, uint32_t sample, int64_t begin,
               int64_t end, float* values) {
  static_assert(2 * V::kCounters == V::kLanes, "a counter fills two lanes of each output");
  const PhiloxKey key(seed);
  const sparse::Rows& m = q.matrix;
  for (int64_t row = begin; row < end; ++row) {
    const uint32_t place = static_cast<uint32_t>(q.row_index[row]);
    for (int64_t i = m.offsets[row]; i < m.offsets[row + 1]; i += kDrawn<V>) {
      const int64_t left = m.offsets[row + 1] - i;
      const int count = left < kDrawn<V> ? static_cast<int>(left) : kDrawn<V>;
      uint32_t columns[kDrawn<V>];
      float eps[kDrawn<V>];
      for (int j = 0; j < count; ++j) {
        columns[j] = static_cast<uint32_t>(q.col_index[m.columns[i + j]]);
      }
      normals_scattered<V>(key, Stream::kWeight, sample, place, columns, count, eps);
      for (int j = 0; j < count; ++j) {
        values[i + j] = __builtin_fmaf(q.scale[i + j], eps[j], q.mean[i + j]);
      }
    }
  }
}

template <class V>
void draw_bias(const sparse::Posterior& q, uint64_t seed, uint32_t sample, float* bias) {
  const PhiloxKey key(seed);
  for (int64_t i = 0; i < q.matrix.rows; i += kDrawn<V>) {
    const int64_t left = q.matrix.rows - i;
    const int count = left < kDrawn<V> ? static_cast<int>(left) : kDrawn<V>;
    uint32_t columns[kDrawn<V>];
    float eps[kDrawn<V>];
    for (int j = 0; j < count; ++j) columns[j] = static_cast<uint32_t>(q.row_index[i + j]);
    normals_scattered<V>(key, Stream::kBias, sample, 0, columns, count, eps);
    for (int j = 0; j < count; ++j) {
      bias[i + j] = __builtin_fmaf(q.bias_scale[i + j], eps[j], q.bias_mean[i + j]);
    }
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
