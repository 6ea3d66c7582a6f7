// Four-lane vectors through the compiler's own vector types (GCC and Clang), for any processor.
//
// This is also the place that says what the members of a vector type mean: vec_avx2.h and
// vec_avx512.h offer the same ones. Every operation rounds as IEEE float32 does; fma and nfma
// may round once or twice, so nothing that must agree bit for bit uses them.
#pragma once

#include <cstdint>
#include <cstring>

#include "inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

struct Vec {
  static constexpr int kLanes = 4;
  typedef float F __attribute__((vector_size(16)));
  typedef uint32_t I __attribute__((vector_size(16)));
  typedef int32_t Mask __attribute__((vector_size(16)));  // all bits set: yes

  FL_INLINE static F load(const float* p) {
    F r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  // The first n lanes from memory, zero in the others; nothing is read past them.
  FL_INLINE static F load(const float* p, int n) {
    F r = set1(0.0f);
    std::memcpy(&r, p, n * sizeof(float));
    return r;
  }
  FL_INLINE static void store(float* p, F a) { std::memcpy(p, &a, sizeof(a)); }
  FL_INLINE static void store(float* p, F a, int n) { std::memcpy(p, &a, n * sizeof(float)); }
  FL_INLINE static F set1(float a) { return F{a, a, a, a}; }
  FL_INLINE static I seti(uint32_t a) { return I{a, a, a, a}; }

  FL_INLINE static F add(F a, F b) { return a + b; }
  FL_INLINE static F sub(F a, F b) { return a - b; }
  FL_INLINE static F mul(F a, F b) { return a * b; }
  FL_INLINE static F div(F a, F b) { return a / b; }
  FL_INLINE static F sqrt(F a) {
    for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
  }
  FL_INLINE static F fma(F a, F b, F c) {
#ifdef __FP_FAST_FMAF
    for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;  // without the instruction, fmaf would be a slow call
#endif
  }
  FL_INLINE static F nfma(F a, F b, F c) { return fma(-a, b, c); }
  // x - n log(2) for an integral |n| < 2^8, to about an ulp of the result's terms: without a fused
  // multiply-add, in two steps of which the first is exact.
  FL_INLINE static F minus_n_log2(F x, F n) {
    return (x - n * 0x1.62e400p-1f) - n * 0x1.7f7d1cp-20f;
  }
  FL_INLINE static F max(F a, F b) { return select(a > b, a, b); }
  FL_INLINE static F abs(F a) { return floats(bits(a) & 0x7fffffffu); }
  FL_INLINE static F minus_abs(F a) { return floats(bits(a) | 0x80000000u); }
  // 1/a to at least 14 bits.
  FL_INLINE static F reciprocal_guess(F a) { return 1.0f / a; }
  // 2^n a for an integral n, where `shifted` = n + 1.5 * 2^23 holds n in its low bits as well.
  FL_INLINE static F times_power_of_two(F a, F, F shifted) {
    return floats(bits(a) + (bits(shifted) << 23));
  }

  FL_INLINE static Mask lt(F a, F b) { return a < b; }
  FL_INLINE static Mask bit30(I a) { return reinterpret_cast<Mask>(a << 1) >> 31; }
  FL_INLINE static F select(Mask m, F yes, F no) {
    const I mask = reinterpret_cast<I>(m);
    return floats((bits(yes) & mask) | (bits(no) & ~mask));
  }
  FL_INLINE static bool any(Mask m) {
    uint64_t w[2];
    std::memcpy(w, &m, sizeof(m));
    return (w[0] | w[1]) != 0;
  }
  // Bit i set where lane i is.
  FL_INLINE static uint32_t lanes_of(Mask m) {
    uint32_t r = 0;
    for (int i = 0; i < kLanes; ++i) r |= static_cast<uint32_t>(m[i] & 1) << i;
    return r;
  }
  // The first n lanes, zero in the others.
  FL_INLINE static F keep(F a, int n) {
    return select(Mask{0, 1, 2, 3} < n, a, set1(0.0f));
  }

  FL_INLINE static I bits(F a) { return reinterpret_cast<I>(a); }
  FL_INLINE static F floats(I a) { return reinterpret_cast<F>(a); }
  FL_INLINE static F to_float(I a) {  // of the lanes as signed numbers
    return __builtin_convertvector(reinterpret_cast<Mask>(a), F);
  }
  FL_INLINE static I addi(I a, I b) { return a + b; }
  FL_INLINE static I subi(I a, I b) { return a - b; }
  FL_INLINE static I andi(I a, I b) { return a & b; }
  FL_INLINE static I ori(I a, I b) { return a | b; }
  FL_INLINE static I xori(I a, I b) { return a ^ b; }
  template <int N> FL_INLINE static I shl(I a) { return a << N; }
  template <int N> FL_INLINE static I shr(I a) { return a >> N; }
  template <int N> FL_INLINE static I sar(I a) {
    return reinterpret_cast<I>(reinterpret_cast<Mask>(a) >> N);
  }

  // Sum of the lanes, in double.
  FL_INLINE static double sum(F a) {
    double r = 0.0;
    for (int i = 0; i < kLanes; ++i) r += a[i];
    return r;
  }

  // A value that is to be loaded once, where it is used often.
  FL_INLINE static F once(F a) { return a; }
  // The sums of a's and of b's lanes; and one sum, in float32.
  FL_INLINE static void sums(F a, F b, float* pa, float* pb) {
    *pa = fast_sum(a);
    *pb = fast_sum(b);
  }
  FL_INLINE static float fast_sum(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }

  // --- Philox: kCounters counters side by side, a 32-bit value in each 64-bit lane -------------
  // (the upper half of a lane may hold anything).
  static constexpr int kCounters = 2;
  typedef uint64_t Word __attribute__((vector_size(16)));
  // first, first + 1, ... in the order that `pack` and `interleave` turn into consecutive columns.
  FL_INLINE static Word counters(uint32_t first) {
    return (Word{0, 1} + first) & 0xffffffffu;
  }
  FL_INLINE static Word words(const uint64_t* p) {
    Word r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  FL_INLINE static Word word(uint64_t a) { return Word{a, a}; }
  FL_INLINE static Word product(Word a, Word b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
  FL_INLINE static Word high(Word a) { return a >> 32; }
  FL_INLINE static Word and2(Word a, Word b) { return a & b; }
  FL_INLINE static Word xor2(Word a, Word b) { return a ^ b; }
  FL_INLINE static Word xor3(Word a, Word b, Word c) { return a ^ b ^ c; }
  // The low halves of `even` and `odd`, lane by lane.
  FL_INLINE static I pack(Word even, Word odd) {
    return I{static_cast<uint32_t>(even[0]), static_cast<uint32_t>(odd[0]),
             static_cast<uint32_t>(even[1]), static_cast<uint32_t>(odd[1])};
  }
  FL_INLINE static void store_bits(uint32_t* p, I a) { std::memcpy(p, &a, sizeof(a)); }
  // Within every group of four lanes: lo = a0 b0 a1 b1, hi = a2 b2 a3 b3.
  FL_INLINE static void interleave(F a, F b, F* lo, F* hi) {
    *lo = F{a[0], b[0], a[1], b[1]};
    *hi = F{a[2], b[2], a[3], b[3]};
  }
};

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
