// W by slices times a single observation: rows are the vector dimension.
#pragma once

#include <cstdint>

#include "../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// L: how the instruction set collects scattered numbers (lanes_*.h).
template <class V, class L, class Column>
void spmv_columns(const sparse::Slices& m, const Column* columns, const float* x, float* y) {
  using F = typename V::F;
  const float *value = m.values.data(), *bias = m.bias.data();
  for (const int32_t count : m.counts) {
    F sum = V::load(bias);
    for (int32_t k = 0; k < count; ++k, value += V::kLanes, columns += V::kLanes) {
      sum = V::fma(V::load(value), L::collect(x, columns), sum);
    }
    // Zero comes first: a NaN then stays one.
    V::store(y, m.relu ? V::max(V::set1(0.0f), sum) : sum);
    bias += V::kLanes;
    y += V::kLanes;
  }
}

template <class V, class L>
void spmv_slices(const sparse::Slices& m, const float* x, float* y) {
  if (m.column_bytes == 2) {
    spmv_columns<V, L>(m, reinterpret_cast<const uint16_t*>(m.columns.data()), x, y);
  } else {
    spmv_columns<V, L>(m, reinterpret_cast<const int32_t*>(m.columns.data()), x, y);
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
