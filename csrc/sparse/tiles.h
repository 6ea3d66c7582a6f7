// Observations by rows to tiles of activations by features, and back.
#pragma once

#include <cstdint>

#include "../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Squares of kLanes x kLanes are transposed in registers. `index` is ascending; features that it
// skips are transposed with their neighbours and not stored.
template <class V, class L>
void to_tile(const float* x, int64_t stride, int64_t batch, const int32_t* index, int64_t features,
             float* tile, int vectors) {
  constexpr int n = V::kLanes;
  const int64_t width = static_cast<int64_t>(vectors) * n;
  for (int64_t j = 0; j < features;) {
    const int64_t first = index[j];
    int64_t end = j + n;
    if (end > features || index[end - 1] != first + n - 1) {
      end = j + 1;
      while (end < features && index[end] < first + n) ++end;
    }
    const int span = static_cast<int>(index[end - 1] - first) + 1;
    for (int v = 0; v < vectors; ++v) {
      const int64_t left = batch - v * n;
      const int rows = left < 0 ? 0 : left < n ? static_cast<int>(left) : n;
      const float* from = x + v * n * stride + first;
      float* out = tile + j * width + v * n;
      alignas(64) float spread[n * n];
      const bool whole = end - j == n;
      if (rows == n && span == n) {
        L::square(from, stride, whole ? out : spread, whole ? width : n);
      } else {
        typename V::F square[n];
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) {
          square[i] = V::set1(0.0f);
          if (i < rows) square[i] = V::load(from + i * stride, span);
        }
        L::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) V::store(whole ? out + i * width : spread + i * n, square[i]);
      }
      if (whole) continue;
      for (int64_t i = j; i < end; ++i, out += width) {
        V::store(out, V::load(spread + (index[i] - first) * n));
      }
    }
    j = end;
  }
}

template <class V, class L>
void from_tile(const float* tile, int vectors, int64_t features, int64_t batch, float* y,
               int64_t stride) {
  constexpr int n = V::kLanes;
  const int64_t width = static_cast<int64_t>(vectors) * n;
  for (int64_t j = 0; j < features; j += n) {
    const int span = features - j < n ? static_cast<int>(features - j) : n;
    for (int v = 0; v < vectors && v * n < batch; ++v) {
      typename V::F square[n];
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) {
        square[i] = V::set1(0.0f);
        if (i < span) square[i] = V::load(tile + (j + i) * width + v * n);
      }
      L::transpose(square);
      const int rows = batch - v * n < n ? static_cast<int>(batch - v * n) : n;
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) {
        if (i < rows) V::store(y + (v * n + i) * stride + j, square[i], span);
      }
    }
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
