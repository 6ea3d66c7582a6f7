// out = a b for matrices too small for BLAS: its threads, and the way to it through torch, cost more than
// the product.
#pragma once

#include <cstdint>

#include "../common/inline.h"
#include "kernels.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// R rows and C vectors of the result stay in registers along `depth` rows of b, packed [depth][C * kLanes].
template <class V, int R, int C>
FL_INLINE void product_tile(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t depth,
                            float* out, int64_t out_row, int64_t width, bool add) {
  using F = typename V::F;
  F sum[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = V::set1(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k, a += a_col, b += C * V::kLanes) {
    F right[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) right[c] = V::load(b + c * V::kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const F left = V::set1(a[r * a_row]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = V::fma(left, right[c], sum[r][c]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      float* to = out + r * out_row + c * V::kLanes;
      const int64_t left = width - c * V::kLanes;
      if (left >= V::kLanes) {
        V::store(to, add ? V::add(V::load(to), sum[r][c]) : sum[r][c]);
      } else if (left > 0) {
        const int n = static_cast<int>(left);
        V::store(to, add ? V::add(V::load(to, n), sum[r][c]) : sum[r][c], n);
      }
    }
  }
}

// b's rows [first, first + depth) and columns [col, col + width), padded with zeros to C vectors.
template <class V, int C>
void pack(const Matrix& b, int64_t first, int64_t depth, int64_t col, int64_t width, float* packed) {
  constexpr int64_t room = C * V::kLanes;
  const float* from = b.data + first * b.row + col * b.col;
  if (b.col == 1) {
    for (int64_t k = 0; k < depth; ++k, from += b.row, packed += room) {
      for (int64_t j = 0; j < width; ++j) packed[j] = from[j];
      for (int64_t j = width; j < room; ++j) packed[j] = 0.0f;
    }
    return;
  }
  for (int64_t j = 0; j < room; ++j) {
    if (j < width) {
      for (int64_t k = 0; k < depth; ++k) packed[k * room + j] = from[j * b.col + k * b.row];
    } else {
      for (int64_t k = 0; k < depth; ++k) packed[k * room + j] = 0.0f;
    }
  }
}

// Columns [col, col + width) of the result, width <= C vectors.
template <class V, int R, int C>
__attribute__((noinline)) void product_columns(float* out, int64_t out_row, const Matrix& a,
                                               const Matrix& b, int64_t col, int64_t width,
                                               float* packed) {
  for (int64_t first = 0; first < b.rows; first += kProductDepth) {
    const int64_t depth = b.rows - first < kProductDepth ? b.rows - first : kProductDepth;
    pack<V, C>(b, first, depth, col, width, packed);
    const bool add = first > 0;
    const float* left = a.data + first * a.col;
    float* to = out + col;
    int64_t m = 0;
    for (; m + R <= a.rows; m += R, left += R * a.row, to += R * out_row) {
      product_tile<V, R, C>(left, a.row, a.col, packed, depth, to, out_row, width, add);
    }
    for (; m + 2 <= a.rows; m += 2, left += 2 * a.row, to += 2 * out_row) {
      product_tile<V, 2, C>(left, a.row, a.col, packed, depth, to, out_row, width, add);
    }
    if (m < a.rows) product_tile<V, 1, C>(left, a.row, a.col, packed, depth, to, out_row, width, add);
  }
}

template <class V>
void product(float* out, int64_t out_row, const Matrix& a, const Matrix& b, float* packed) {
  // Sums that fill the registers: 32 of 16 lanes, 16 of 8.
  constexpr int C = V::kLanes == 16 ? 4 : 2, R = V::kLanes == 16 ? 6 : 5;
  if (b.rows == 0) {
    for (int64_t m = 0; m < a.rows; ++m) {
      for (int64_t n = 0; n < b.cols; ++n) out[m * out_row + n] = 0.0f;
    }
    return;
  }
  for (int64_t col = 0; col < b.cols;) {
    const int64_t left = b.cols - col;
    if (left <= V::kLanes) {
      product_columns<V, 8, 1>(out, out_row, a, b, col, left, packed);
      return;
    }
    if (C == 4 && left <= 2 * V::kLanes) {
      product_columns<V, 8, 2>(out, out_row, a, b, col, left, packed);
      return;
    }
    const int64_t width = left < C * V::kLanes ? left : C * V::kLanes;
    product_columns<V, R, C>(out, out_row, a, b, col, width, packed);
    col += width;
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
