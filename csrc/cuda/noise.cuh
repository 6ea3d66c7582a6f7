// The noise of a weight, as fastlbbnn/reference/noise.py defines it: the same bits as on a CPU.
//
// Every operation rounds on its own (the _rn words are never fused), because the polynomials are the
// definition of the stream.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace fastlbbnn {
namespace cuda {

// Ten rounds of Philox4x32 on (c[0], c[1], c[2], c[3]) with the seed as the key.
__device__ __forceinline__ void philox(uint32_t (&c)[4], uint64_t seed) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c[0]) * 0xD2511F53u;
    const uint64_t p1 = static_cast<uint64_t>(c[2]) * 0xCD9E8D57u;
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// p t + c, rounded twice.
__device__ __forceinline__ float step(float p, float t, float c) { return __fadd_rn(__fmul_rn(p, t), c); }

// log(x) - 23 log(2), to 1.3e-6 relative.
__device__ __forceinline__ float noise_log(float x) {
  const int32_t bits = __float_as_int(x);
  const int32_t e = (bits - 0x3f3504f3) >> 23;
  const float t = __fsub_rn(__int_as_float(bits - static_cast<int32_t>(static_cast<uint32_t>(e) << 23)), 1.0f);
  const float n = __fsub_rn(static_cast<float>(e), 23.0f);
  float p = 0x1.e964cap-4f;
  p = step(p, t, -0x1.7ca95cp-3f);
  p = step(p, t, 0x1.a2cd1cp-3f);
  p = step(p, t, -0x1.fe5810p-3f);
  p = step(p, t, 0x1.553054p-2f);
  p = step(p, t, -0x1.00011cp-1f);
  p = step(__fmul_rn(t, t), p, t);
  return step(n, 0x1.62e430p-1f, p);
}

// Two standard normals from two words (Box-Muller); the first, or the second.
__device__ __forceinline__ float box_muller(uint32_t radius_word, uint32_t angle_word, bool second) {
  const float v = static_cast<float>(radius_word >> 9 | 1u);
  const float radius = __fsqrt_rn(__fmul_rn(noise_log(v), -2.0f));
  const int32_t angle = static_cast<int32_t>(angle_word << 2 >> 11 | 1u) - (1 << 20);
  const float s = __fmul_rn(static_cast<float>(angle), 0x1p-21f);
  const float s2 = __fmul_rn(s, s);
  float p = 0x1.3f4f32p-4f;
  p = step(p, s2, -0x1.4aa698p-1f);
  p = step(p, s2, 0x1.921f90p+0f);
  float q = -0x1.4ea120p-6f;
  q = step(q, s2, 0x1.03b130p-2f);
  q = step(q, s2, -0x1.3bd3a0p+0f);
  q = step(q, s2, 1.0f);
  const float across = __fmul_rn(__fmul_rn(p, s), radius);
  const float along = __fmul_rn(q, radius);
  const float mirrored = (angle_word & 0x80000000u) != 0 ? -along : along;
  const bool exchange = (angle_word & 0x40000000u) != 0;
  return exchange != second ? across : mirrored;
}

// eps of (stream, sample, row, column): a counter yields those of four neighbouring columns.
__device__ __forceinline__ float normal_at(uint64_t seed, uint32_t stream, uint32_t sample, uint32_t row,
                                           uint32_t column) {
  uint32_t words[4] = {column / 4, row, stream, sample};
  philox(words, seed);
  const bool upper = column % 4 >= 2;
  return box_muller(upper ? words[2] : words[0], upper ? words[3] : words[1], column % 2 != 0);
}

}  // namespace cuda
}  // namespace fastlbbnn
