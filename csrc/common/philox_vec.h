// Philox on vectors: many counters at once.
#pragma once

#include <cstdint>

#include "inline.h"
#include "philox.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// The ten rounds on kUnits vectors of counters whose first word differs from lane to lane. The four
// output words of each counter come as two vectors of 32-bit lanes: even = words 0 and 2, odd =
// words 1 and 3.
//
// Several vectors are computed side by side because ten rounds are one long chain of dependent
// operations, and a single chain leaves the processor waiting.
template <class V, int kUnits>
FL_INLINE void philox_rounds(const PhiloxKey& key, const typename V::Word* first, uint32_t row,
                             uint32_t stream, uint32_t sample, typename V::I* even,
                             typename V::I* odd) {
  using W = typename V::Word;
  const W m0 = V::word(kPhiloxM0), m1 = V::word(kPhiloxM1);
  W c0[kUnits], c1[kUnits], c2[kUnits], c3[kUnits];

  // The other three words of the counter are the same in all lanes, so half of rounds one and two
  // is scalar.
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * stream;
  const uint32_t a0 = static_cast<uint32_t>(p1 >> 32) ^ row ^ static_cast<uint32_t>(key.low[0]);
  const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * a0;
  const W a1 = V::word(static_cast<uint32_t>(p1));
  const W high_p0 = V::word(p0 >> 32), low_p0 = V::word(static_cast<uint32_t>(p0));
  const W mix = V::word(sample ^ key.high[0]);
#pragma GCC unroll 4
  for (int j = 0; j < kUnits; ++j) {
    const W q0 = V::product(m0, first[j]);
    const W q1 = V::product(m1, V::xor2(V::high(q0), mix));
    c0[j] = V::xor3(V::high(q1), a1, V::word(key.low[1]));
    c1[j] = q1;
    c2[j] = V::xor3(high_p0, q0, V::word(key.high[1]));
    c3[j] = low_p0;
  }
#pragma GCC unroll 8
  for (int round = 2; round < 10; ++round) {
#pragma GCC unroll 4
    for (int j = 0; j < kUnits; ++j) {
      const W s0 = V::product(m0, c0[j]), s1 = V::product(m1, c2[j]);
      c0[j] = V::xor3(V::high(s1), c1[j], V::word(key.low[round]));
      c1[j] = s1;
      c2[j] = V::xor3(V::high(s0), c3[j], V::word(key.high[round]));
      c3[j] = s0;
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kUnits; ++j) {
    even[j] = V::pack(c0[j], c2[j]);
    odd[j] = V::pack(c1[j], c3[j]);
  }
}

// The words of kUnits * V::kCounters consecutive counters (column / 4 = first, first + 1, ...):
// V::interleave(even, odd) yields them in the order of the columns.
template <class V, int kUnits>
FL_INLINE void philox(const PhiloxKey& key, uint32_t first, uint32_t row, uint32_t stream,
                      uint32_t sample, typename V::I* even, typename V::I* odd) {
  typename V::Word counters[kUnits];
#pragma GCC unroll 4
  for (int j = 0; j < kUnits; ++j) counters[j] = V::counters(first + j * V::kCounters);
  philox_rounds<V, kUnits>(key, counters, row, stream, sample, even, odd);
}

// out[i] = the word of column columns[i], for count <= V::kCounters scattered columns of a row.
template <class V>
FL_INLINE void philox_scattered(const PhiloxKey& key, const int64_t* columns, int count,
                                uint32_t row, uint32_t stream, uint32_t sample, uint32_t* out) {
  uint64_t counters[V::kCounters] = {};
  for (int i = 0; i < count; ++i) counters[i] = static_cast<uint32_t>(columns[i] / 4);
  const typename V::Word first = V::words(counters);
  typename V::I even, odd;
  philox_rounds<V, 1>(key, &first, row, stream, sample, &even, &odd);
  uint32_t words[2][2 * V::kCounters];
  V::store_bits(words[0], even);
  V::store_bits(words[1], odd);
  for (int i = 0; i < count; ++i) out[i] = words[columns[i] % 2][2 * i + (columns[i] % 4) / 2];
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
