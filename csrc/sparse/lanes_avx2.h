// See lanes_portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../common/inline.h"

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
  // Reads eight indices, whatever n is: there is room after the last ones (Layer::columns).
  template <class Column>
  FL_INLINE static __m256 gather(const float* x, const Column* columns, int n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 mask = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), x, indices(columns), mask, 4);
  }
  FL_INLINE static float sum(__m256 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  FL_INLINE static void square(const float* x, int64_t stride, float* out, int64_t width) {
    __m256 a[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(x + i * stride);
    transpose(a);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + i * width, a[i]);
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
