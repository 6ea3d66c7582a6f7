// Sampled weights: mean + scale eps, with the noise of the trained network's weight.
#pragma once

#include <cstdint>
#include <cstring>

#include "../common/noise.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Vectors of weights whose noise is made together: the counters of one alone would wait for their own ten
// rounds.
constexpr int kDrawVectors = 2;

template <class V>
constexpr int kDrawn = kDrawVectors * V::kLanes;

// eps of the places (rows[i], columns[i]), i < kDrawn. A counter yields the normals of four neighbouring
// columns, of which a scattered weight wants one: it takes two of the four words, and of the two normals that
// these are the one or the other. Counters are 64 bits wide and weights 32: those of the even weights are one
// vector, those of the odd ones another, and `pack` brings their words together again.
template <class V>
FL_INLINE void normals_at(const PhiloxKey& key, Stream stream, uint32_t sample, const uint32_t* rows,
                          const uint32_t* columns, typename V::F* eps) {
  using W = typename V::Word;
  using I = typename V::I;
  constexpr int kUnits = 2 * kDrawVectors;
  const W m0 = V::word(kPhiloxM0), m1 = V::word(kPhiloxM1);
  // The third and the fourth word of a counter are the same for all.
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * static_cast<uint32_t>(stream);
  const W a0 = V::word((p1 >> 32) ^ key.low[0]), a1 = V::word(static_cast<uint32_t>(p1));
  const W mix = V::word(sample ^ key.high[0]);
  W c0[kUnits], c1[kUnits], c2[kUnits], c3[kUnits];
  I column[kDrawVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kDrawVectors; ++v) {
    uint32_t groups[V::kLanes];
    uint64_t words[2][V::kCounters];
    const float* as_floats = reinterpret_cast<const float*>(columns + v * V::kLanes);
    column[v] = V::bits(V::load(as_floats));
    V::store_bits(groups, V::template shr<2>(column[v]));
    std::memcpy(words[0], groups, sizeof(groups));
    std::memcpy(words[1], rows + v * V::kLanes, sizeof(groups));
    const W group = V::words(words[0]), row = V::words(words[1]);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const int j = 2 * v + odd;
      const W q0 = V::product(m0, odd ? V::high(group) : group);
      const W s0 = V::product(m0, V::xor2(odd ? V::high(row) : row, a0));
      const W q1 = V::product(m1, V::xor2(V::high(q0), mix));
      c0[j] = V::xor3(V::high(q1), a1, V::word(key.low[1]));
      c1[j] = q1;
      c2[j] = V::xor3(V::high(s0), q0, V::word(key.high[1]));
      c3[j] = s0;
    }
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
#pragma GCC unroll 2
  for (int v = 0; v < kDrawVectors; ++v) {
    // All bits where the place in the counter is 2 or 3, and where it is 1 or 3.
    const I late = V::template sar<31>(V::template shl<30>(column[v]));
    const I second = V::template sar<31>(V::template shl<31>(column[v]));
    const auto choose = [](I mask, I no, I yes) FL_ALWAYS {
      return V::xori(no, V::andi(V::xori(no, yes), mask));
    };
    const int a = 2 * v, b = a + 1;
    const I radius = choose(late, V::pack(c0[a], c0[b]), V::pack(c2[a], c2[b]));
    const I angle = choose(late, V::pack(c1[a], c1[b]), V::pack(c3[a], c3[b]));
    typename V::F normal[2];
    box_muller<V>(radius, angle, &normal[0], &normal[1]);
    eps[v] = V::floats(choose(second, V::bits(normal[0]), V::bits(normal[1])));
  }
}

// values[i - begin] = mean[i] + scale[i] eps for i in [begin, end); begin is a multiple of kDrawn.
template <class V>
void draw(const sparse::Places& q, Stream stream, uint64_t seed, uint32_t sample, int64_t begin,
          int64_t end, float* values) {
  static_assert(kDrawn<V> <= sparse::kDrawnTogether, "there is room for so many");
  const PhiloxKey key(seed);
  values -= begin;
  for (int64_t i = begin; i < end; i += kDrawn<V>) {
    typename V::F eps[kDrawVectors];
    normals_at<V>(key, stream, sample, q.rows.data() + i, q.columns.data() + i, eps);
#pragma GCC unroll 2
    for (int v = 0; v < kDrawVectors; ++v) {
      const int64_t at = i + v * V::kLanes;
      const auto value =
          V::fma(V::load(q.scale.data() + at), eps[v], V::load(q.mean.data() + at));
      if (at + V::kLanes <= end) {
        V::store(values + at, value);
      } else if (at < end) {
        V::store(values + at, value, static_cast<int>(end - at));
      }
    }
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
