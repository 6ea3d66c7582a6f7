// See lanes_portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Lanes {
  FL_INLINE static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  FL_INLINE static __m512i indices(const uint16_t* p, __mmask16 m) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p));
  }
  FL_INLINE static __m512i indices(const int32_t* p, __mmask16 m) {
    return _mm512_maskz_loadu_epi32(m, p);
  }
  template <class Column>
  FL_INLINE static __m512 gather(const float* x, const Column* columns) {
    return _mm512_i32gather_ps(indices(columns, 0xFFFF), x, 4);
  }
  template <class Column>
  FL_INLINE static __m512 gather(const float* x, const Column* columns, int n) {
    const __mmask16 m = first(n);
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, indices(columns, m), x, 4);
  }
  FL_INLINE static float sum(__m512 a) { return _mm512_reduce_add_ps(a); }
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
