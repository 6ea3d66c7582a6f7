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
  // Number by number: the instruction that gathers takes twice the time on processors of AMD (measured on
  // Zen 5: 1.5 cycles a number, this 0.7).
  template <class Column>
  FL_INLINE static __m128 collect_four(const float* x, const Column* columns) {
    __m128 a = _mm_load_ss(x + columns[0]);
    a = _mm_insert_ps(a, _mm_load_ss(x + columns[1]), 0x10);
    a = _mm_insert_ps(a, _mm_load_ss(x + columns[2]), 0x20);
    return _mm_insert_ps(a, _mm_load_ss(x + columns[3]), 0x30);
  }
  template <class Column>
  FL_INLINE static __m256 collect(const float* x, const Column* columns) {
    return _mm256_set_m128(collect_four(x, columns + 4), collect_four(x, columns));
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
