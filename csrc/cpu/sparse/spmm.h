// W by rows times a tile of activations.
#pragma once

#include <cstdint>
#include <cstring>

#include "../../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// G rows of a panel with the same number of weights. A row's weights go in turn into two sets of T
// accumulators: one set alone would wait for its own additions. The order of additions is the same for
// every T and G, so a result does not depend on the tile that an observation is in.
template <class V, int T, int G, bool kFirst>
FL_INLINE void equal_rows(const sparse::RowPart* part, const uint16_t* column, const float* value,
                          const float* bias, const float* x, float* y) {
  using F = typename V::F;
  constexpr int64_t width = T * V::kLanes;
  const int64_t count = part->count;
  F even[G][T], odd[G][T];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      even[g][t] = kFirst ? V::set1(bias[part[g].row])
                          : V::load(y + part[g].row * width + t * V::kLanes);
      odd[g][t] = V::set1(0.0f);
    }
  }
  int64_t k = 0;
  if (T <= 2) {
    // Here loads are the bottleneck: four column indices come in one.
    for (; k + 4 <= count; k += 4) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        const int64_t i = g * count + k;
        uint64_t c;
        std::memcpy(&c, column + i, sizeof(c));
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const float* a = x + (c >> 16 * j & 0xffff) * width;
          const F w = V::set1(value[i + j]);
          F* sum = j % 2 ? odd[g] : even[g];
#pragma GCC unroll 2
          for (int t = 0; t < T; ++t) sum[t] = V::fma(w, V::load(a + t * V::kLanes), sum[t]);
        }
      }
    }
  }
  for (; k + 2 <= count; k += 2) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const int64_t i = g * count + k;
      const float *a = x + column[i] * width, *b = x + column[i + 1] * width;
      const F u = V::set1(value[i]), v = V::set1(value[i + 1]);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) even[g][t] = V::fma(u, V::load(a + t * V::kLanes), even[g][t]);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) odd[g][t] = V::fma(v, V::load(b + t * V::kLanes), odd[g][t]);
    }
  }
  if (k < count) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const int64_t i = g * count + k;
      const float* a = x + column[i] * width;
      const F u = V::set1(value[i]);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) even[g][t] = V::fma(u, V::load(a + t * V::kLanes), even[g][t]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    // The floor comes first: a NaN then stays one, as it does in torch's relu.
    const F floor = V::set1(part[g].floor);
    float* out = y + part[g].row * width;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      V::store(out + t * V::kLanes, V::max(floor, V::add(even[g][t], odd[g][t])));
    }
  }
}

// One panel. Narrow tiles take several rows at a time, so that enough sums are under way to keep the
// multipliers busy; rows come in the order of their counts, so most have neighbours of the same.
template <class V, int T, bool kFirst>
__attribute__((noinline)) void panel_rows(const sparse::RowPart* part, const sparse::RowPart* end,
                                          const uint16_t* column, const float* value,
                                          const float* bias, const float* x, float* y) {
  constexpr int G = T == 1 ? 4 : T == 2 ? 2 : 1;
  while (part != end) {
    const int64_t count = part->count;
    if (G > 1 && end - part >= G && part[G - 1].count == count) {
      equal_rows<V, T, G, kFirst>(part, column, value, bias, x, y);
      part += G;
      column += G * count;
      value += G * count;
    } else {
      equal_rows<V, T, 1, kFirst>(part, column, value, bias, x, y);
      ++part;
      column += count;
      value += count;
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
    column += panel.weights;
    values += panel.weights;
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
