// Eight-lane vectors on AVX2 with FMA. See vec_portable.h for what each member means.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Vec {
  static constexpr int kLanes = 8;
  using F = __m256;
  using I = __m256i;
  using Mask = __m256;

  FL_INLINE static F load(const float* p) { return _mm256_loadu_ps(p); }
  FL_INLINE static F load(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  FL_INLINE static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  FL_INLINE static void store(float* p, F a, int n) { _mm256_maskstore_ps(p, first(n), a); }
  FL_INLINE static F set1(float a) { return _mm256_set1_ps(a); }
  FL_INLINE static I seti(uint32_t a) { return _mm256_set1_epi32(static_cast<int>(a)); }

  FL_INLINE static F add(F a, F b) { return _mm256_add_ps(a, b); }
  FL_INLINE static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  FL_INLINE static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  FL_INLINE static F div(F a, F b) { return _mm256_div_ps(a, b); }
  FL_INLINE static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  FL_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  FL_INLINE static F nfma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  FL_INLINE static F minus_n_log2(F x, F n) {
    return _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e430p-1f), x);
  }
  FL_INLINE static F max(F a, F b) { return _mm256_max_ps(a, b); }
  FL_INLINE static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  FL_INLINE static F minus_abs(F a) { return _mm256_or_ps(a, _mm256_set1_ps(-0.0f)); }
  FL_INLINE static F reciprocal_guess(F a) {
    // rcpps has 12 bits where AVX-512's has 14: one more Newton step here keeps the callers alike.
    const F r = _mm256_rcp_ps(a);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(a, r, _mm256_set1_ps(1.0f)), r, r);
  }

  // 2^n a, where the low bits of `shifted` = n + 1.5 * 2^23 hold n.
  FL_INLINE static F times_power_of_two(F a, F, F shifted) {
    const I exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
  }

  FL_INLINE static Mask lt(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  FL_INLINE static F select(Mask m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  FL_INLINE static Mask bit30(I a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 1)); }
  FL_INLINE static bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  FL_INLINE static uint32_t lanes_of(Mask m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m));
  }
  FL_INLINE static F keep(F a, int n) { return _mm256_and_ps(a, _mm256_castsi256_ps(first(n))); }

  FL_INLINE static I bits(F a) { return _mm256_castps_si256(a); }
  FL_INLINE static F floats(I a) { return _mm256_castsi256_ps(a); }
  FL_INLINE static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  FL_INLINE static I addi(I a, I b) { return _mm256_add_epi32(a, b); }
  FL_INLINE static I subi(I a, I b) { return _mm256_sub_epi32(a, b); }
  FL_INLINE static I andi(I a, I b) { return _mm256_and_si256(a, b); }
  FL_INLINE static I ori(I a, I b) { return _mm256_or_si256(a, b); }
  FL_INLINE static I xori(I a, I b) { return _mm256_xor_si256(a, b); }
  template <int N> FL_INLINE static I shl(I a) { return _mm256_slli_epi32(a, N); }
  template <int N> FL_INLINE static I shr(I a) { return _mm256_srli_epi32(a, N); }
  template <int N> FL_INLINE static I sar(I a) { return _mm256_srai_epi32(a, N); }

  FL_INLINE static double sum(F a) {
    const __m256d d = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                                    _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
    const __m128d q = _mm_add_pd(_mm256_castpd256_pd128(d), _mm256_extractf128_pd(d, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
  }

  // Loaded once where it is used often: compilers fold a load into every instruction that may have one.
  FL_INLINE static F once(F a) {
    asm("" : "+x"(a));
    return a;
  }
  FL_INLINE static void sums(F a, F b, float* pa, float* pb) {
    const __m256 ab = _mm256_hadd_ps(a, b);   // within halves: a a b b
    const __m256 s = _mm256_hadd_ps(ab, ab);  // a b a b
    const __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    *pa = _mm_cvtss_f32(t);
    *pb = _mm_cvtss_f32(_mm_movehdup_ps(t));
  }
  FL_INLINE static float fast_sum(F a) {
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 p = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(p) + _mm_cvtss_f32(_mm_movehdup_ps(p));
  }

  // --- Philox: four counters, one in the low half of every 64-bit lane ------------------------
  static constexpr int kCounters = 4;
  using Word = __m256i;
  FL_INLINE static Word counters(uint32_t first) {
    return _mm256_add_epi32(_mm256_set1_epi64x(first), _mm256_setr_epi64x(0, 2, 1, 3));
  }
  FL_INLINE static Word words(const uint64_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  FL_INLINE static Word word(uint64_t a) { return _mm256_set1_epi64x(a); }
  FL_INLINE static Word product(Word a, Word b) { return _mm256_mul_epu32(a, b); }
  FL_INLINE static Word high(Word a) { return _mm256_srli_epi64(a, 32); }
  FL_INLINE static Word and2(Word a, Word b) { return _mm256_and_si256(a, b); }
  FL_INLINE static Word xor2(Word a, Word b) { return _mm256_xor_si256(a, b); }
  FL_INLINE static Word xor3(Word a, Word b, Word c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
  }
  FL_INLINE static I pack(Word even, Word odd) {
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  }
  FL_INLINE static void store_bits(uint32_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
  }
  FL_INLINE static void interleave(F a, F b, F* lo, F* hi) {
    *lo = _mm256_unpacklo_ps(a, b);
    *hi = _mm256_unpackhi_ps(a, b);
  }

 private:
  FL_INLINE static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
