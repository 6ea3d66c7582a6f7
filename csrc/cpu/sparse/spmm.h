// W by rows times a tile of activations.
#pragma once

#include <cstdint>

#include "../../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// One panel. A row's weights go in turn into two sets of T accumulators: one set alone would wait
// for its own additions. The order is the same for every T, so a result does not depend on the tile
// that an observation is in.
template <class V, int T, bool kFirst>
__attribute__((noinline)) void panel_rows(const sparse::RowPart* part, const sparse::RowPart* end,
                                          const uint16_t* column, const float* value,
                                          const float* bias, const float* x, float* y) {
  using F = typename V::F;
  constexpr int64_t width = T * V::kLanes;
  for (; part != end; ++part) {
    float* out = y + part->row * width;
    F even[T], odd[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      even[t] = kFirst ? V::set1(bias[part->row]) : V::load(out + t * V::kLanes);
      odd[t] = V::set1(0.0f);
    }
    int32_t left = part->count;
    for (; left >= 2; left -= 2, column += 2, value += 2) {
      const float *a = x + column[0] * width, *b = x + column[1] * width;
      const F u = V::set1(value[0]), v = V::set1(value[1]);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) even[t] = V::fma(u, V::load(a + t * V::kLanes), even[t]);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) odd[t] = V::fma(v, V::load(b + t * V::kLanes), odd[t]);
    }
    if (left) {
      const float* a = x + *column++ * width;
      const F u = V::set1(*value++);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) even[t] = V::fma(u, V::load(a + t * V::kLanes), even[t]);
    }
    // The floor comes first: a NaN then stays one, as it does in torch's relu.
    const F floor = V::set1(part->floor);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      V::store(out + t * V::kLanes, V::max(floor, V::add(even[t], odd[t])));
    }
  }
}

template <class V, int T>
void all_panels(const sparse::PackedRows& m, const float* values, const float* bias,
                const float* x, float* y) {
  const uint16_t* column = m.columns.data();
  for (size_t p = 0; p < m.panels.size(); ++p) {
    const sparse::Panel& panel = m.panels[p];
    const sparse::RowPart* part = m.parts.data() + panel.first_part;
    const sparse::RowPart* end = m.parts.data() + panel.end_part;
    const float* from = x + panel.first_col * T * V::kLanes;
    if (p == 0) {
      panel_rows<V, T, true>(part, end, column, values, bias, from, y);
    } else {
      panel_rows<V, T, false>(part, end, column, values, bias, from, y);
    }
    int64_t count = 0;
    for (; part != end; ++part) count += part->count;
    column += count;
    values += count;
  }
}

template <class V>
void spmm_rows(const sparse::PackedRows& m, const float* values, const float* bias, const float* x,
               float* y, int vectors) {
  switch (vectors) {
    case 1: return all_panels<V, 1>(m, values, bias, x, y);
    case 2: return all_panels<V, 2>(m, values, bias, x, y);
    case 3: return all_panels<V, 3>(m, values, bias, x, y);
    default: return all_panels<V, 4>(m, values, bias, x, y);
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
