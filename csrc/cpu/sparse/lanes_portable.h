// What selected networks need of a vector beyond Vec: gathers, transposition, a sum in float.
// lanes_avx2.h and lanes_avx512.h offer the same.
#pragma once

#include <cstdint>

#include "../../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Lanes {
  // x[columns[i]] in lane i; with n, zero in the lanes from n on.
  template <class Column>
  FL_INLINE static Vec::F gather(const float* x, const Column* columns) {
    return Vec::F{x[columns[0]], x[columns[1]], x[columns[2]], x[columns[3]]};
  }
  template <class Column>
  FL_INLINE static Vec::F gather(const float* x, const Column* columns, int n) {
    Vec::F r = Vec::set1(0.0f);
    for (int i = 0; i < n; ++i) r[i] = x[columns[i]];
    return r;
  }
  FL_INLINE static float sum(Vec::F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
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
