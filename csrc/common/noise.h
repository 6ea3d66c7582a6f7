// From Philox words to normals and gate uniforms, the same bits on every backend.
//
// Only additions, multiplications, one IEEE division and one IEEE square root, each rounded on its
// own: no fused multiply-add (compile with -ffp-contract=off). The polynomials are therefore the
// definition of the stream, not an approximation of it; fastlbbnn/reference/noise.py repeats them
// operation for operation.
//
// A weight owns one 32-bit word of the weight stream. Its upper 22 bits go into eps; its lower 10
// bits are the first bits of the uniform u that decides the weight's indicator. The 14 bits that
// complete u come from the gate stream. Ten bits settle most indicators (u < alpha or not), so a
// kernel may leave the gate stream alone except where they do not.
#pragma once

#include <cstdint>

#include "inline.h"
#include "philox_vec.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Columns filled by one group of V::kCounters counters, and by the kUnits groups that the
// generators below keep in flight together.
template <class V>
constexpr int kUnit = 4 * V::kCounters;

// log(x) - bias log(2), to 1.3e-6 relative, for the noise only.
template <class V>
FL_INLINE typename V::F noise_log(typename V::F x, float exponent_bias) {
  using F = typename V::F;
  using I = typename V::I;
  const I e = V::template sar<23>(V::subi(V::bits(x), V::seti(0x3f3504f3u)));
  const F m = V::floats(V::subi(V::bits(x), V::template shl<23>(e)));
  const F t = V::sub(m, V::set1(1.0f));
  const F n = V::sub(V::to_float(e), V::set1(exponent_bias));
  F p = V::set1(0x1.e964cap-4f);
  p = V::add(V::mul(p, t), V::set1(-0x1.7ca95cp-3f));
  p = V::add(V::mul(p, t), V::set1(0x1.a2cd1cp-3f));
  p = V::add(V::mul(p, t), V::set1(-0x1.fe5810p-3f));
  p = V::add(V::mul(p, t), V::set1(0x1.553054p-2f));
  p = V::add(V::mul(p, t), V::set1(-0x1.00011cp-1f));
  p = V::add(V::mul(V::mul(t, t), p), t);
  return V::add(V::mul(n, V::set1(0x1.62e430p-1f)), p);
}

// Box-Muller: radius sqrt(-2 log v) from one word, direction from the other. v is an odd multiple
// of 2^-23. Of the direction, 20 bits are an angle pi/2 s with s in (-1/2, 1/2), a quarter of the
// circle; bit 31 mirrors it to the opposite quarter and bit 30 exchanges the two axes.
template <class V>
FL_INLINE void box_muller(typename V::I radius_word, typename V::I angle_word,
                          typename V::F* first, typename V::F* second) {
  using F = typename V::F;
  using I = typename V::I;
  const I one = V::seti(1u);
  const F v = V::to_float(V::ori(V::template shr<9>(radius_word), one));
  const F radius = V::sqrt(V::mul(noise_log<V>(v, 23.0f), V::set1(-2.0f)));

  const I angle = V::ori(V::template shr<11>(V::template shl<2>(angle_word)), one);
  const F s = V::mul(V::to_float(V::subi(angle, V::seti(1u << 20))), V::set1(0x1p-21f));
  const F s2 = V::mul(s, s);
  F p = V::set1(0x1.3f4f32p-4f);
  p = V::add(V::mul(p, s2), V::set1(-0x1.4aa698p-1f));
  p = V::add(V::mul(p, s2), V::set1(0x1.921f90p+0f));
  F q = V::set1(-0x1.4ea120p-6f);
  q = V::add(V::mul(q, s2), V::set1(0x1.03b130p-2f));
  q = V::add(V::mul(q, s2), V::set1(-0x1.3bd3a0p+0f));
  q = V::add(V::mul(q, s2), V::set1(1.0f));
  const F across = V::mul(V::mul(p, s), radius);
  const F along = V::mul(q, radius);
  const F mirrored =
      V::floats(V::xori(V::bits(along), V::andi(angle_word, V::seti(0x80000000u))));
  const typename V::Mask exchange = V::bit30(angle_word);
  *first = V::select(exchange, across, mirrored);
  *second = V::select(exchange, mirrored, across);
}

template <class V>
FL_INLINE void store_interleaved(float* out, typename V::F even, typename V::F odd) {
  typename V::F lo, hi;
  V::interleave(even, odd, &lo, &hi);
  V::store(out, lo);
  V::store(out + V::kLanes, hi);
}

// eps[j] = standard normal of column 4*counter + j, and u_high[j] = the first ten bits of its gate's
// uniform, as a multiple of 2^-10; j < kUnits * kUnit<V>.
template <class V, int kUnits, bool kGate>
FL_INLINE void normals(const PhiloxKey& key, Stream stream, uint32_t sample, uint32_t row,
                       uint32_t counter, float* eps, float* u_high) {
  typename V::I even[kUnits], odd[kUnits];
  philox<V, kUnits>(key, counter, row, static_cast<uint32_t>(stream), sample, even, odd);
#pragma GCC unroll 4
  for (int j = 0; j < kUnits; ++j) {
    typename V::F first, second;
    box_muller<V>(even[j], odd[j], &first, &second);
    store_interleaved<V>(eps + j * kUnit<V>, first, second);
    if (kGate) {
      const typename V::I mask = V::seti(0x3ffu);
      const typename V::F unit = V::set1(0x1p-10f);
      store_interleaved<V>(u_high + j * kUnit<V>,
                           V::mul(V::to_float(V::andi(even[j], mask)), unit),
                           V::mul(V::to_float(V::andi(odd[j], mask)), unit));
    }
  }
}

// u_low[j] = what completes the uniform, an odd multiple of 2^-24 below 2^-10: u = u_high + u_low is
// exact, and neither it nor 1 - u is 0.
template <class V, int kUnits>
FL_INLINE void gate_bits(const PhiloxKey& key, uint32_t sample, uint32_t row, uint32_t counter,
                         float* u_low) {
  typename V::I even[kUnits], odd[kUnits];
  philox<V, kUnits>(key, counter, row, static_cast<uint32_t>(Stream::kGate), sample, even, odd);
  const typename V::I one = V::seti(1u);
  const typename V::F unit = V::set1(0x1p-24f);
#pragma GCC unroll 4
  for (int j = 0; j < kUnits; ++j) {
    store_interleaved<V>(
        u_low + j * kUnit<V>,
        V::mul(V::to_float(V::ori(V::template shr<18>(even[j]), one)), unit),
        V::mul(V::to_float(V::ori(V::template shr<18>(odd[j]), one)), unit));
  }
}

// The same for count <= V::kCounters scattered columns of a row.
template <class V>
FL_INLINE void gate_bits_scattered(const PhiloxKey& key, uint32_t sample, uint32_t row,
                                   const int64_t* columns, int count, float* u_low) {
  uint32_t words[V::kCounters];
  philox_scattered<V>(key, columns, count, row, static_cast<uint32_t>(Stream::kGate), sample,
                      words);
  for (int i = 0; i < count; ++i) {
    u_low[i] = static_cast<float>(static_cast<int32_t>(words[i] >> 18 | 1u)) * 0x1p-24f;
  }
}

// logit(u) = log(u / (1 - u)): the logistic noise of a gate. A gate compares omega with it, and omega
// is given, so hard gates agree bit for bit between backends.
template <class V>
FL_INLINE typename V::F logistic(typename V::F u) {
  return noise_log<V>(V::div(u, V::sub(V::set1(1.0f), u)), 0.0f);
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
