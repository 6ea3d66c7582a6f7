// Forward: w = g (kappa + tau eps) and the five sums, row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "gates.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

template <class V>
struct WeightSums {
  typename V::F A_w, T, S;
};

// Weights of n <= kChunk columns. Without indicators alpha and gate are nullptr and stand for 1.
//   A_w += alpha;  T += alpha log tau (half of the sum's term);  S += alpha (kappa^2 + tau^2)
template <class V, bool kGated, bool kSample>
__attribute__((noinline)) void weights_of_columns(const float* kappa, const float* rho, int64_t n,
                                                  const float* eps, const float* alpha,
                                                  const float* gate, float* decay, float* w,
                                                  WeightSums<V>* sums) {
  using F = typename V::F;
  decay_of_columns<V>(rho, n, decay);
  F A_w = sums->A_w, T = sums->T, S = sums->S;
  for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
    prefetch(kappa + k, n);
    const F mean = lanes.load(kappa + k), r = lanes.load(rho + k);
    const Scale<V> s = scale_from_decay<V, false>(r, V::load(decay + k));
    if (kSample) {
      const F z = V::fma(s.tau, V::load(eps + k), mean);
      V::store(w + k, lanes.keep(kGated ? V::mul(V::load(gate + k), z) : z));
    }
    const F a = lanes.keep(kGated ? V::load(alpha + k) : V::set1(1.0f));
    A_w = V::add(A_w, a);
    T = V::fma(a, s.log_tau, T);
    S = V::fma(a, V::fma(mean, mean, V::mul(s.tau, s.tau)), S);
  });
  *sums = {A_w, T, S};
}

// Repeats each of `grid` block values over its columns.
inline void expand_blocks(const float* grid, int64_t block_cols, int64_t cols, float* out) {
  for (int64_t k = 0, j = 0; k < cols; ++j) {
    for (int64_t end = k + block_cols < cols ? k + block_cols : cols; k < end; ++k) {
      out[k] = grid[j];
    }
  }
}

// Everything a row needs of its indicators, for blocks larger than (1, 1): one grid row serves
// block_rows rows.
template <class V>
struct BlockRow {
  std::vector<float> u_high, alpha_grid, gate_grid, alpha, gate;
  GateScratch scratch;

  explicit BlockRow(const Posterior& q)
      : u_high(padded_cols(q.cols) + 2 * kChunk), alpha_grid(padded_cols(q.grid_cols()) + kChunk),
        gate_grid(alpha_grid.size()), alpha(padded_cols(q.cols)), gate(alpha.size()) {}

  // Fills alpha_grid (and gate_grid) for grid row i; returns entropy and A of the row.
  template <bool kSample>
  void evaluate(const Posterior& q, const Draw* draw, int64_t i, double* entropy, double* A) {
    const int64_t grid = q.grid_cols();
    if (kSample) first_bits(q, *draw, i);
    GateSums<V> sums{V::set1(0.0f), V::set1(0.0f)};
    for (int64_t j = 0; j < grid; j += kChunk) {
      const int64_t n = grid - j < kChunk ? grid - j : kChunk;
      if (kSample) {
        for (int64_t b = 0; b < n; ++b) scratch.u_high[b] = u_high[(j + b) * q.block_cols];
      }
      gates_of_columns<V, kSample>(draw, q.omega + i * grid + j, i, j, n, scratch,
                                   alpha_grid.data() + j, gate_grid.data() + j, &sums);
    }
    *entropy = V::sum(sums.entropy);
    *A = V::sum(sums.A);
  }

  // The first bits of a block's uniform are those of its first weight.
  void first_bits(const Posterior& q, const Draw& draw, int64_t i) {
    float eps[kChunk + 64];
    for (int64_t k = 0; k < q.cols; k += kChunk) {
      const int64_t n = q.cols - k < kChunk ? q.cols - k : kChunk;
      normals_of_columns<V, true>(draw, i * q.block_rows, k, n, eps, u_high.data() + k);
    }
  }
};

template <class V>
FL_INLINE void add_sums(RowSums* row, const WeightSums<V>& s) {
  row->A_w += V::sum(s.A_w);
  row->T += 2.0 * V::sum(s.T);
  row->S += V::sum(s.S);
}

// One row of weights given its indicators for all columns (blocks), or without indicators.
template <class V, bool kGated, bool kSample>
void weight_row(const Posterior& q, const Draw* draw, int64_t row, const float* alpha,
                const float* gate, float* w, float* kept_eps, RowSums* sums) {
  using F = typename V::F;
  alignas(64) float eps[kChunk + 64], decay[kChunk + 64 + 48];
  const F zero = V::set1(0.0f);
  WeightSums<V> total{zero, zero, zero};
  for (int64_t k = 0; k < q.cols; k += kChunk) {
    const int64_t n = q.cols - k < kChunk ? q.cols - k : kChunk;
    float* e = kept_eps ? kept_eps + k : eps;
    if (kSample) normals_of_columns<V, false>(*draw, row, k, n, e, nullptr);
    const int64_t i = row * q.cols + k;
    weights_of_columns<V, kGated, kSample>(q.kappa + i, q.rho + i, n, e, alpha + k, gate + k,
                                           decay, kSample ? w + k : nullptr, &total);
  }
  if (sums) add_sums<V>(sums, total);
}

// One row of the paper's model, an indicator a weight.
template <class V, bool kSample>
void gated_row(const Posterior& q, const Draw* draw, int64_t row, float* w, float* kept_eps,
               RowSums* sums) {
  using F = typename V::F;
  GateScratch scratch;
  alignas(64) float eps[kChunk + 64 + 16], decay[kChunk + 64 + 32];
  alignas(64) float alpha[kChunk + 64 + 48], gate[kChunk + 64 + 16];
  const F zero = V::set1(0.0f);
  GateSums<V> gates{zero, zero};
  WeightSums<V> total{zero, zero, zero};
  for (int64_t k = 0; k < q.cols; k += kChunk) {
    const int64_t n = q.cols - k < kChunk ? q.cols - k : kChunk, i = row * q.cols + k;
    float* e = kept_eps ? kept_eps + k : eps;
    if (kSample) normals_of_columns<V, true>(*draw, row, k, n, e, scratch.u_high);
    gates_of_columns<V, kSample>(draw, q.omega + i, row, k, n, scratch, alpha, gate, &gates);
    weights_of_columns<V, true, kSample>(q.kappa + i, q.rho + i, n, e, alpha, gate, decay,
                                         kSample ? w + k : nullptr, &total);
  }
  if (sums) {
    sums->H -= V::sum(gates.entropy);
    sums->A += V::sum(gates.A);
    add_sums<V>(sums, total);
  }
}

// The five sums (and with kSample the draw) of rows [begin, end).
template <class V, bool kSample>
void sample_rows(const Posterior& q, const Draw* draw, int64_t begin, int64_t end,
                 const Sampled& out, bool keep_eps, RowSums* sums) {
  if (sums) {
    for (int64_t row = begin; row < end; ++row) sums[row] = RowSums{0, 0, 0, 0, 0};
  }
  const auto w_of = [&](int64_t row) {
    return kSample ? out.saved + row * 2 * out.stride : nullptr;
  };
  const auto eps_of = [&](int64_t row) {
    return kSample && keep_eps ? w_of(row) + out.stride : nullptr;
  };
  const auto sums_of = [&](int64_t row) { return sums ? sums + row : nullptr; };
  // The padding of a row holds zeros: nothing reads it, but a draw should be the same bits twice.
  for (int64_t row = begin; kSample && row < end; ++row) {
    for (int64_t k = q.cols; k < out.stride; ++k) w_of(row)[k] = 0.0f;
  }

  if (!q.gated()) {
    for (int64_t row = begin; row < end; ++row) {
      weight_row<V, false, kSample>(q, draw, row, nullptr, nullptr, w_of(row), eps_of(row),
                                    sums_of(row));
    }
    return;
  }
  if (q.elementwise()) {
    for (int64_t row = begin; row < end; ++row) {
      gated_row<V, kSample>(q, draw, row, w_of(row), eps_of(row), sums_of(row));
    }
    return;
  }
  BlockRow<V> block(q);
  for (int64_t row = begin; row < end; ) {
    const int64_t i = row / q.block_rows;
    double entropy, A;
    block.template evaluate<kSample>(q, draw, i, &entropy, &A);
    if (sums) {
      sums[row].H -= entropy;
      sums[row].A += A;
    }
    expand_blocks(block.alpha_grid.data(), q.block_cols, q.cols, block.alpha.data());
    if (kSample) {
      expand_blocks(block.gate_grid.data(), q.block_cols, q.cols, block.gate.data());
      if (out.gates) {
        for (int64_t j = 0; j < q.grid_cols(); ++j) {
          out.gates[i * q.grid_cols() + j] = block.gate_grid[j];
        }
      }
    }
    const int64_t last = (i + 1) * q.block_rows < end ? (i + 1) * q.block_rows : end;
    for (; row < last; ++row) {
      weight_row<V, true, kSample>(q, draw, row, block.alpha.data(), block.gate.data(), w_of(row),
                                   eps_of(row), sums_of(row));
    }
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
