// See lanes_portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Lanes {
  // Two loads go in a cycle, and permutations take a port from multiplications: with few vectors a
  // weight, broadcasting loads are better.
  static constexpr bool kOffsetsByFour = true;
  static constexpr bool spreads(int vectors) { return vectors >= 2; }
  FL_INLINE static __m512 repeat_four(const float* p) {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
  }
  template <int I> FL_INLINE static __m512 spread(__m512 four) {
    return _mm512_permute_ps(four, I * 0x55);
  }
  FL_INLINE static __m512i indices(const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  FL_INLINE static __m512i indices(const int32_t* p) { return _mm512_loadu_si512(p); }
  // (Single observations go to the narrower kernels: see kernels_for.)
  template <class Column>
  FL_INLINE static __m512 collect(const float* x, const Column* columns) {
    return _mm512_i32gather_ps(indices(columns), x, 4);
  }
  // The quarters of four rows are put together by loads, so that fewer permutations are left than in
  // `transpose` (eight-lane vectors gain nothing from it).
  FL_INLINE static void square(const float* x, int64_t stride, float* out, int64_t width) {
    const float* p[4] = {x, x + stride, x + 2 * stride, x + 3 * stride};
    const int64_t four = 4 * stride, twelve = 12 * stride;
#pragma GCC unroll 1
    for (int64_t j = 0; j < 16; j += 4, out += 4 * width) {
      __m512 r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_castps128_ps512(_mm_loadu_ps(p[i]));
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(p[i] + four), 1);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(p[i] + 2 * four), 2);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(p[i] + twelve), 3);
        p[i] += 4;
      }
      const __m512 b0 = _mm512_unpacklo_ps(r[0], r[1]), b1 = _mm512_unpackhi_ps(r[0], r[1]);
      const __m512 b2 = _mm512_unpacklo_ps(r[2], r[3]), b3 = _mm512_unpackhi_ps(r[2], r[3]);
      _mm512_storeu_ps(out, _mm512_shuffle_ps(b0, b2, 0x44));
      _mm512_storeu_ps(out + width, _mm512_shuffle_ps(b0, b2, 0xEE));
      _mm512_storeu_ps(out + 2 * width, _mm512_shuffle_ps(b1, b3, 0x44));
      _mm512_storeu_ps(out + 3 * width, _mm512_shuffle_ps(b1, b3, 0xEE));
    }
  }
  FL_INLINE static void transpose(__m512* a) {
    __m512 b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xEE);
      a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    // Groups of four lanes are transposed now; what is left is a 4 x 4 of such groups.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
      b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD);
      b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
      b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xDD);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88);
      a[i + 4] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88);
      a[i + 8] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0xDD);
      a[i + 12] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xDD);
    }
  }
};

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
