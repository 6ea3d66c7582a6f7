// The indicators of one row: inclusion probabilities, entropy and sampled gates.
#pragma once

#include <cstdint>

#include "../common/noise.h"
#include "../common/vecmath.h"
#include "columns.h"
#include "kernels.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Columns that are worked on together: the scratch of a chunk stays in the L1 cache.
constexpr int64_t kChunk = 512;

// Groups of counters in flight; what is left at the end of a row goes one by one.
constexpr int kNoiseUnits = 3;

template <class V, bool kGate>
__attribute__((noinline)) void normals_of_columns(const Draw& draw, int64_t row, int64_t first_col,
                                                  int64_t n, float* eps, float* u_high) {
  constexpr int64_t step = kNoiseUnits * kUnit<V>;
  const uint32_t r = static_cast<uint32_t>(row);
  int64_t k = 0;
  for (; n - k > step - kUnit<V>; k += step) {
    normals<V, kNoiseUnits, kGate>(draw.key, draw.stream, draw.sample, r,
                                   static_cast<uint32_t>((first_col + k) / 4), eps + k, u_high + k);
  }
  for (; k < n; k += kUnit<V>) {
    normals<V, 1, kGate>(draw.key, draw.stream, draw.sample, r,
                         static_cast<uint32_t>((first_col + k) / 4), eps + k, u_high + k);
  }
}

template <class V>
__attribute__((noinline)) void gate_bits_of_columns(const Draw& draw, int64_t row,
                                                    int64_t first_col, int64_t n, float* u_low) {
  constexpr int64_t step = kNoiseUnits * kUnit<V>;
  const uint32_t r = static_cast<uint32_t>(row);
  int64_t k = 0;
  for (; n - k > step - kUnit<V>; k += step) {
    gate_bits<V, kNoiseUnits>(draw.key, draw.sample, r, static_cast<uint32_t>((first_col + k) / 4),
                              u_low + k);
  }
  for (; k < n; k += kUnit<V>) {
    gate_bits<V, 1>(draw.key, draw.sample, r, static_cast<uint32_t>((first_col + k) / 4),
                    u_low + k);
  }
}

// out = exp(-|x|). Apart from what uses it, because many short chains of operations keep the
// processor busier than few long ones.
template <class V>
__attribute__((noinline)) void decay_of_columns(const float* x, int64_t n, float* out) {
  for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
    prefetch(x + k, n);
    V::store(out + k, exp_nonpositive<V>(V::minus_abs(lanes.load(x + k))));
  });
}

// The gate at full precision: g = 1[omega > logit(u)], or sigmoid((omega - logit(u)) / delta).
template <class V>
FL_INLINE typename V::F exact_gate(const Draw& draw, typename V::F omega, typename V::F u) {
  using F = typename V::F;
  const F noise = logistic<V>(u);
  if (draw.hard) return V::select(V::lt(noise, omega), V::set1(1.0f), V::set1(0.0f));
  return inclusion<V>(V::mul(V::sub(omega, noise), V::set1(draw.inv_temperature))).alpha;
}

// A relaxed gate is 0 or 1 to float32 precision once |omega - logit(u)| > 18 delta. logit has slope
// at least 4, so |alpha - u| > 18/4 delta is enough; and u is known to 2^-11 from its first bits
// (10^-6 covers the rounding of alpha).
inline float undecided_margin(const Draw& draw) {
  const float known = 0x1p-11f + 1e-6f;
  return draw.hard ? known : known + 4.5f / draw.inv_temperature;
}

// Past this margin hardly any vector of gates is decided by its first bits: skip the attempt.
constexpr float kMarginForAll = 0.05f;

struct GateScratch {
  alignas(64) float u_high[kChunk + 64];
  alignas(64) float u_low[kChunk + 64 + 16];
  alignas(64) float decay[kChunk + 64 + 32];
  alignas(64) int32_t vectors[kChunk / 4];    // columns of vectors with undecided lanes,
  alignas(64) uint32_t lanes[kChunk / 4];     // and which
};

// Full precision for the few gates that their first bits left open, gathered from wherever they are.
template <class V>
FL_INLINE void decide_scattered(const Draw& draw, const float* omega, int64_t row, int64_t first,
                                int vectors, const GateScratch& scratch, float* gate) {
  constexpr int most = V::kCounters < V::kLanes ? V::kCounters : V::kLanes;
  int64_t columns[most];
  float u[V::kLanes] = {}, logits[V::kLanes] = {}, decided[V::kLanes];
  int count = 0;
  const auto flush = [&]() {
    if (count == 0) return;
    gate_bits_scattered<V>(draw.key, draw.sample, static_cast<uint32_t>(row), columns, count, u);
    for (int i = 0; i < count; ++i) u[i] += scratch.u_high[columns[i] - first];
    V::store(decided, exact_gate<V>(draw, V::load(logits), V::load(u)));
    for (int i = 0; i < count; ++i) gate[columns[i] - first] = decided[i];
    count = 0;
  };
  for (int j = 0; j < vectors; ++j) {
    for (uint32_t open = scratch.lanes[j]; open != 0; open &= open - 1) {
      const int64_t k = scratch.vectors[j] + __builtin_ctz(open);
      columns[count] = first + k;
      logits[count] = omega[k];
      if (++count == most) flush();
    }
  }
  flush();
}

// Sums of a run of columns, in vector lanes.
template <class V>
struct GateSums {
  typename V::F entropy, A;
};

// alpha and (with kSample) gate for n <= kChunk indicators of grid row `row` from grid column
// `first`. scratch.u_high holds the first bits of their uniforms.
template <class V, bool kSample>
__attribute__((noinline)) void gates_of_columns(const Draw* draw, const float* omega, int64_t row,
                                                int64_t first, int64_t n, GateScratch& scratch,
                                                float* alpha, float* gate, GateSums<V>* sums) {
  using F = typename V::F;
  const F one = V::set1(1.0f), zero = V::set1(0.0f), half_step = V::set1(0x1p-11f);
  decay_of_columns<V>(omega, n, scratch.decay);

  const float margin = kSample ? undecided_margin(*draw) : 0.0f;
  const F margins = V::set1(margin);
  int undecided = 0;
  // The entropy's log(1 + e) is summed as the log of a product: the factors are at most 2, so a
  // product of kFactors of them stays finite, and one logarithm serves them all.
  constexpr int64_t kFactors = 64;
  F product = one;
  F entropies = sums->entropy, total = sums->A;
  for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
    const F o = lanes.load(omega + k);
    const Inclusion<V> q = inclusion_from_decay<V>(o, V::load(scratch.decay + k));
    V::store(alpha + k, q.alpha);
    entropies = V::fma(V::abs(o), q.complement, entropies);  // 0 in lanes past the end: o is 0
    product = V::mul(product, V::add(one, lanes.keep(q.decay)));
    if (k % (kFactors * V::kLanes) == (kFactors - 1) * V::kLanes) {
      entropies = V::add(entropies, log_positive<V>(product));
      product = one;
    }
    total = V::add(total, lanes.keep(q.alpha));
    if (kSample) {
      const F distance = V::sub(q.alpha, V::add(V::load(scratch.u_high + k), half_step));
      V::store(gate + k, V::select(V::lt(distance, zero), zero, one));
      // Without a branch: at the paper's temperature one vector in seven has an undecided lane.
      const uint32_t open = lanes.first_bits(V::lanes_of(V::lt(V::abs(distance), margins)));
      scratch.vectors[undecided] = static_cast<int32_t>(k);
      scratch.lanes[undecided] = open;
      undecided += open != 0;
    }
  });
  sums->entropy = V::add(entropies, log_positive<V>(product));
  sums->A = total;
  if (!kSample) return;

  if (margin > kMarginForAll) {
    gate_bits_of_columns<V>(*draw, row, first, n, scratch.u_low);
    for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
      const F u = V::add(V::load(scratch.u_high + k), V::load(scratch.u_low + k));
      V::store(gate + k, exact_gate<V>(*draw, lanes.load(omega + k), u));
    });
    return;
  }
  decide_scattered<V>(*draw, omega, row, first, undecided, scratch, gate);
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
