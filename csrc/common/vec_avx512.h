// Sixteen-lane vectors on AVX-512F/DQ/BW/VL.
//
// Vec is one of three types with the same members (see vec_portable.h for what each member
// means); the kernels are templates over them, so that every instruction set runs one source.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Vec {
  static constexpr int kLanes = 16;
  using F = __m512;
  using I = __m512i;
  using Mask = __mmask16;

  FL_INLINE static F load(const float* p) { return _mm512_loadu_ps(p); }
  FL_INLINE static F load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  FL_INLINE static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  FL_INLINE static void store(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
  FL_INLINE static F set1(float a) { return _mm512_set1_ps(a); }
  FL_INLINE static I seti(uint32_t a) { return _mm512_set1_epi32(static_cast<int>(a)); }

  FL_INLINE static F add(F a, F b) { return _mm512_add_ps(a, b); }
  FL_INLINE static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  FL_INLINE static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  FL_INLINE static F div(F a, F b) { return _mm512_div_ps(a, b); }
  FL_INLINE static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  FL_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  FL_INLINE static F nfma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  FL_INLINE static F minus_n_log2(F x, F n) {
    return _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e430p-1f), x);
  }
  FL_INLINE static F max(F a, F b) { return _mm512_max_ps(a, b); }
  FL_INLINE static F abs(F a) { return _mm512_abs_ps(a); }
  FL_INLINE static F minus_abs(F a) { return _mm512_or_ps(a, _mm512_set1_ps(-0.0f)); }
  FL_INLINE static F reciprocal_guess(F a) { return _mm512_rcp14_ps(a); }

  FL_INLINE static F times_power_of_two(F a, F n, F) { return _mm512_scalef_ps(a, n); }

  FL_INLINE static Mask lt(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  FL_INLINE static F select(Mask m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  FL_INLINE static Mask bit30(I a) {
    return _mm512_test_epi32_mask(a, _mm512_set1_epi32(1 << 30));
  }
  FL_INLINE static bool any(Mask m) { return m != 0; }
  FL_INLINE static uint32_t lanes_of(Mask m) { return m; }
  FL_INLINE static F keep(F a, int n) { return _mm512_maskz_mov_ps(first(n), a); }

  FL_INLINE static I bits(F a) { return _mm512_castps_si512(a); }
  FL_INLINE static F floats(I a) { return _mm512_castsi512_ps(a); }
  FL_INLINE static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  FL_INLINE static I addi(I a, I b) { return _mm512_add_epi32(a, b); }
  FL_INLINE static I subi(I a, I b) { return _mm512_sub_epi32(a, b); }
  FL_INLINE static I andi(I a, I b) { return _mm512_and_si512(a, b); }
  FL_INLINE static I ori(I a, I b) { return _mm512_or_si512(a, b); }
  FL_INLINE static I xori(I a, I b) { return _mm512_xor_si512(a, b); }
  template <int N> FL_INLINE static I shl(I a) { return _mm512_slli_epi32(a, N); }
  template <int N> FL_INLINE static I shr(I a) { return _mm512_srli_epi32(a, N); }
  template <int N> FL_INLINE static I sar(I a) { return _mm512_srai_epi32(a, N); }

  FL_INLINE static double sum(F a) {
    const __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    const __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    return _mm512_reduce_add_pd(_mm512_add_pd(lo, hi));
  }

  // Loaded once where it is used often: compilers fold a load into every instruction that may have one.
  FL_INLINE static F once(F a) {
    asm("" : "+v"(a));
    return a;
  }
  FL_INLINE static void sums(F a, F b, float* pa, float* pb) {
    // Quarters: a0 a1 b0 b1 + a2 a3 b2 b3, then a lane of each half that holds the rest.
    F s = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    s = _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xB1));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
    *pa = _mm512_cvtss_f32(s);
    *pb = _mm_cvtss_f32(_mm512_extractf32x4_ps(s, 2));
  }
  FL_INLINE static float fast_sum(F a) {
    F s = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0x4E));
    s = _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xB1));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
    return _mm512_cvtss_f32(_mm512_add_ps(s, _mm512_permute_ps(s, 0xB1)));
  }

  // --- Philox: eight counters, one in the low half of every 64-bit lane -----------------------
  static constexpr int kCounters = 8;
  using Word = __m512i;
  // Lane order 0,4,1,5,2,6,3,7: `interleave` then leaves counters 0..3 and 4..7 side by side.
  FL_INLINE static Word counters(uint32_t first) {
    return _mm512_add_epi32(_mm512_set1_epi64(first), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  }
  FL_INLINE static Word words(const uint64_t* p) { return _mm512_loadu_si512(p); }
  FL_INLINE static Word word(uint64_t a) { return _mm512_set1_epi64(a); }
  FL_INLINE static Word product(Word a, Word b) { return _mm512_mul_epu32(a, b); }
  // A shuffle rather than a shift: shifts and multiplications share one port, shuffles have another.
  FL_INLINE static Word high(Word a) { return _mm512_shuffle_epi32(a, _MM_PERM_DDBB); }
  FL_INLINE static Word and2(Word a, Word b) { return _mm512_and_si512(a, b); }
  FL_INLINE static Word xor2(Word a, Word b) { return _mm512_xor_si512(a, b); }
  FL_INLINE static Word xor3(Word a, Word b, Word c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
  }
  // Low halves of `even` and `odd` side by side: one I of 32-bit lanes.
  FL_INLINE static I pack(Word even, Word odd) {
    return _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
  }
  FL_INLINE static void store_bits(uint32_t* p, I a) { _mm512_storeu_si512(p, a); }
  FL_INLINE static void interleave(F a, F b, F* lo, F* hi) {
    *lo = _mm512_unpacklo_ps(a, b);
    *hi = _mm512_unpackhi_ps(a, b);
  }

 private:
  FL_INLINE static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
};

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
