// What selected networks need of a vector beyond Vec: scattered numbers, transposition, spreading.
// lanes_avx2.h and lanes_avx512.h offer the same.
#pragma once

#include <cstdint>

#include "../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Lanes {
  // Whether a product with T vectors a tile reads four offsets, and four weights, at a time.
  static constexpr bool kOffsetsByFour = false;
  static constexpr bool spreads(int) { return false; }
  // p[0..4) in every group of four lanes, and the I-th of them in all lanes.
  FL_INLINE static Vec::F repeat_four(const float* p) { return Vec::load(p); }
  template <int I> FL_INLINE static Vec::F spread(Vec::F four) { return Vec::set1(four[I]); }
  // x[columns[i]] in lane i.
  template <class Column>
  FL_INLINE static Vec::F collect(const float* x, const Column* columns) {
    return Vec::F{x[columns[0]], x[columns[1]], x[columns[2]], x[columns[3]]};
  }
  // A square of observations by rows [kLanes, stride] as vectors of features, `width` floats apart.
  FL_INLINE static void square(const float* x, int64_t stride, float* out, int64_t width) {
    Vec::F a[4];
    for (int i = 0; i < 4; ++i) a[i] = Vec::load(x + i * stride);
    transpose(a);
    for (int i = 0; i < 4; ++i) Vec::store(out + i * width, a[i]);
  }
  // Rows become columns, in place.
  FL_INLINE static void transpose(Vec::F* a) {
    for (int i = 0; i < 4; ++i) {
      for (int j = i + 1; j < 4; ++j) {
        const float t = a[i][j];
        a[i][j] = a[j][i];
        a[j][i] = t;
      }
    }
  }
};

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
