// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// The library's noise is a pure function of (seed, stream, sample, row, column): the key is the
// 64-bit seed; the counter is (column / 4, row, stream, sample); column % 4 picks the output word.
// Nothing about tiles, threads or backends enters, so every backend draws the same bits.
#pragma once

#include <cstdint>

namespace fastlbbnn {

// What a stream is used for; it keeps the draws of one seed apart. Mirrored in
// fastlbbnn/reference/noise.py.
enum class Stream : uint32_t {
  kWeight = 0,      // eps of the weights, [N, K]
  kGate = 1,        // last bits of the indicators' u, [blocks along N, blocks along K]
  kBias = 2,        // eps of the biases, [1, N]
  kActivation = 3,  // eps of the activations (local reparametrisation), [M, N]
};

constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;

// The ten round keys of a seed. They lie in memory as 64-bit words, so that a round reads its key
// as a broadcast operand, which costs a load slot and none of the busy arithmetic ones.
struct PhiloxKey {
  uint64_t low[10], high[10];
  explicit PhiloxKey(uint64_t seed) {
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += kPhiloxW0, k1 += kPhiloxW1) {
      low[round] = k0;
      high[round] = k1;
    }
  }
};

}  // namespace fastlbbnn
