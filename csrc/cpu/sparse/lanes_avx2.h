// See lanes_portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Lanes {
  // Three narrow loads go in a cycle, and multiplications leave a port to permutations.
  static constexpr bool kOffsetsByFour = false;
  static constexpr bool spreads(int) { return true; }
  FL_INLINE static __m256 repeat_four(const float* p) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  }
  template <int I> FL_INLINE static __m256 spread(__m256 four) {
    return _mm256_permute_ps(four, I * 0x55);
  }
  FL_INLINE static __m256i indices(const uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  FL_INLINE static __m256i indices(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  template <class Column>
  FL_INLINE static __m256 gather(const float* x, const Column* columns) {
    return _mm256_i32gather_ps(x, indices(columns), 4);
  }
  template <class Column>
  FL_INLINE static __m256 gather(const float* x, const Column* columns, int n) {
    alignas(32) float r[8] = {};
    for (int i = 0; i < n; ++i) r[i] = x[columns[i]];
    return _mm256_load_ps(r);
  }
  FL_INLINE static float sum(__m256 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  // The halves of two rows are put together by loads, so that fewer permutations are left.
  FL_INLINE static void square(const float* x, int64_t stride, float* out, int64_t width) {
    const float* p[4] = {x, x + stride, x + 2 * stride, x + 3 * stride};
#pragma GCC unroll 1
    for (int j = 0; j < 8; j += 4, out += 4 * width) {
      __m256 r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p[i])),
                                    _mm_loadu_ps(p[i] + 4 * stride), 1);
        p[i] += 4;
      }
      const __m256 b0 = _mm256_unpacklo_ps(r[0], r[1]), b1 = _mm256_unpackhi_ps(r[0], r[1]);
      const __m256 b2 = _mm256_unpacklo_ps(r[2], r[3]), b3 = _mm256_unpackhi_ps(r[2], r[3]);
      _mm256_storeu_ps(out, _mm256_shuffle_ps(b0, b2, 0x44));
      _mm256_storeu_ps(out + width, _mm256_shuffle_ps(b0, b2, 0xEE));
      _mm256_storeu_ps(out + 2 * width, _mm256_shuffle_ps(b1, b3, 0x44));
      _mm256_storeu_ps(out + 3 * width, _mm256_shuffle_ps(b1, b3, 0xEE));
    }
  }
  FL_INLINE static void transpose(__m256* a) {
    __m256 b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
      a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
      b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
};

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
