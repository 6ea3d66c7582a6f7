// W by rows times a single observation: the weights of a row are the vector dimension.
#pragma once

#include <cstdint>

#include "../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// L: the instruction set's gathers (lanes_*.h).
template <class V, class L, class Column>
void spmv_columns(const sparse::Rows& m, const Column* columns, const float* values,
                  const float* bias, bool relu, const float* x, float* y) {
  using F = typename V::F;
  for (int64_t row = 0; row < m.rows; ++row) {
    int64_t i = m.offsets[row];
    const int64_t end = m.offsets[row + 1];
    F a = V::set1(0.0f), b = V::set1(0.0f);
    for (; i + 2 * V::kLanes <= end; i += 2 * V::kLanes) {
      a = V::fma(V::load(values + i), L::gather(x, columns + i), a);
      b = V::fma(V::load(values + i + V::kLanes), L::gather(x, columns + i + V::kLanes), b);
    }
    if (i + V::kLanes <= end) {
      a = V::fma(V::load(values + i), L::gather(x, columns + i), a);
      i += V::kLanes;
    }
    if (i < end) {
      const int n = static_cast<int>(end - i);
      b = V::fma(V::load(values + i, n), L::gather(x, columns + i, n), b);
    }
    const float v = bias[row] + L::sum(V::add(a, b));
    y[row] = relu && v < 0.0f ? 0.0f : v;
  }
}

template <class V, class L>
void spmv_rows(const sparse::Rows& m, const float* values, const float* bias, bool relu,
               const float* x, float* y) {
  if (m.columns.bytes == 2) {
    spmv_columns<V, L>(m, static_cast<const uint16_t*>(m.columns.data), values, bias, relu, x, y);
  } else {
    spmv_columns<V, L>(m, static_cast<const int32_t*>(m.columns.data), values, bias, relu, x, y);
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
