// W by blocks times a tile of activations, and times a single observation.
#pragma once

#include <cstdint>

#include "../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// R rows of a block row: R * T sums stay in registers along all its blocks.
template <class V, int T, int R>
FL_INLINE void group_rows(const sparse::PackedBlocks& m, const sparse::RowGroup& g,
                          const float* value, const float* bias, const float* x, float* y) {
  using F = typename V::F;
  constexpr int64_t width = T * V::kLanes;
  F sum[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sum[r][t] = V::set1(bias[g.first_row + r]);
  }
  for (int32_t b = m.offsets[g.block_row]; b < m.offsets[g.block_row + 1]; ++b) {
    const int64_t first = m.block_columns[b] * m.bk;
    const int64_t count = m.cols - first < m.bk ? m.cols - first : m.bk;
    const float* in = x + first * width;
    const float* w = value;
    for (int64_t k = 0; k < count; ++k, in += width, w += R) {
      F a[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) a[t] = V::load(in + t * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F u = V::set1(w[r]);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sum[r][t] = V::fma(u, a[t], sum[r][t]);
      }
    }
    value += m.bk * R;
  }
  const F floor = V::set1(m.floor);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* out = y + (g.first_row + r) * width;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) V::store(out + t * V::kLanes, V::max(floor, sum[r][t]));
  }
}

template <class V, int T>
__attribute__((noinline)) void all_groups(const sparse::PackedBlocks& m, const float* values,
                                          const float* bias, const float* x, float* y) {
  for (const sparse::RowGroup& g : m.groups) {
    const float* value = values + g.first_value;
    switch (g.rows) {
      case 1: group_rows<V, T, 1>(m, g, value, bias, x, y); break;
      case 2: group_rows<V, T, 2>(m, g, value, bias, x, y); break;
      default: group_rows<V, T, 4>(m, g, value, bias, x, y); break;
    }
  }
}

template <class V>
void spmm_blocks(const sparse::PackedBlocks& m, const float* values, const float* bias,
                 const float* x, float* y, int vectors) {
  switch (vectors) {
    case 1: return all_groups<V, 1>(m, values, bias, x, y);
    case 2: return all_groups<V, 2>(m, values, bias, x, y);
    case 3: return all_groups<V, 3>(m, values, bias, x, y);
    default: return all_groups<V, 4>(m, values, bias, x, y);
  }
}

// One observation: the columns of a block are the vector dimension.
template <class V>
void spmv_blocks(const sparse::Blocks& m, const float* bias, bool relu, const float* x, float* y) {
  using F = typename V::F;
  for (int64_t row = 0; row < m.rows; ++row) {
    const int64_t i = row / m.bn, in_block = row % m.bn;
    F sum = V::set1(0.0f);
    for (int32_t b = m.offsets[i]; b < m.offsets[i + 1]; ++b) {
      const float* w = m.values + (b * m.bn + in_block) * m.bk;
      const int64_t first = m.columns[b] * m.bk;
      const int64_t count = m.cols - first < m.bk ? m.cols - first : m.bk;
      int64_t k = 0;
      for (; k + V::kLanes <= count; k += V::kLanes) {
        sum = V::fma(V::load(w + k), V::load(x + first + k), sum);
      }
      if (k < count) {
        const int n = static_cast<int>(count - k);
        sum = V::fma(V::load(w + k, n), V::load(x + first + k, n), sum);
      }
    }
    const float v = bias[row] + static_cast<float>(V::sum(sum));
    y[row] = relu && v < 0.0f ? 0.0f : v;
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
