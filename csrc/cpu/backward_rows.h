// Backward: from d loss / d w and the gradient of the five sums to all parameter gradients, in one
// pass over the rows; the gradients are written out or spent on a step of Adam at once.
//
// With c the gradient of the five sums, g the gate and eps the noise of a draw (summed over draws):
//   d kappa = g dw + 2 c_S alpha kappa
//   d tau   = g dw eps + 2 c_S alpha tau + 2 c_T alpha / tau,       d rho = d tau sigmoid(rho)
//   d omega = dw w (1-g) / delta
//           + alpha (1-alpha) (c_H omega + c_A + sum over the block's weights of
//                              c_Aw + c_T log tau^2 + c_S (kappa^2 + tau^2))
// where g (1-g) (kappa + tau eps) = w (1-g) was used.
#pragma once

#include <cstdint>
#include <vector>

#include "sample_rows.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Columns whose gradients wait in scratch for Adam.
constexpr int64_t kBackwardChunk = 256;

// One step of Adam on kTensors tensors, n columns from `offset`, with gradients in L1. All tensors in
// one loop: their chains of operations are independent, and their memory streams go on together.
template <class V, int kTensors>
__attribute__((noinline)) void adam_of_columns(const AdamTensor* const* tensors,
                                               const float* const* gradients, int64_t offset,
                                               int64_t n) {
  using F = typename V::F;
  struct Constants {
    float *param, *exp_avg, *exp_avg_sq;
    const float* gradient;
    F one_minus_beta1, beta2, one_minus_beta2, step_size, inv_bias, eps;
  } c[kTensors];
  for (int t = 0; t < kTensors; ++t) {
    const AdamTensor& a = *tensors[t];
    c[t] = {a.param + offset, a.exp_avg + offset, a.exp_avg_sq + offset, gradients[t],
            V::set1(a.one_minus_beta1), V::set1(a.beta2), V::set1(a.one_minus_beta2),
            V::set1(a.step_size), V::set1(a.inv_bias_correction2_sqrt), V::set1(a.eps)};
  }
  for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
#pragma GCC unroll 3
    for (int t = 0; t < kTensors; ++t) {
      prefetch(c[t].exp_avg + k, n);
      prefetch(c[t].exp_avg_sq + k, n);
      const F g = V::load(c[t].gradient + k);
      F m = lanes.load(c[t].exp_avg + k), v = lanes.load(c[t].exp_avg_sq + k);
      m = V::fma(V::sub(g, m), c[t].one_minus_beta1, m);
      v = V::fma(V::mul(g, g), c[t].one_minus_beta2, V::mul(v, c[t].beta2));
      lanes.store(c[t].exp_avg + k, m);
      lanes.store(c[t].exp_avg_sq + k, v);
      const F update = V::mul(m, reciprocal<V>(V::fma(V::sqrt(v), c[t].inv_bias, c[t].eps)));
      lanes.store(c[t].param + k, V::nfma(update, c[t].step_size, lanes.load(c[t].param + k)));
    }
  });
}

// Where the gradients of a run of columns go: to the caller's tensors, or to scratch and from there
// into a step of Adam.
template <class V>
class Run {
 public:
  float *kappa, *rho, *omega;   // write the run's gradients here

  explicit Run(const GradientSink& sink) : sink_(sink) {}

  void begin(int64_t weight_offset, int64_t omega_offset) {
    kappa = sink_.kappa ? sink_.kappa + weight_offset : kappa_;
    rho = sink_.rho ? sink_.rho + weight_offset : rho_;
    omega = sink_.omega ? sink_.omega + omega_offset : omega_;
  }
  // All three tensors have a gradient for these n columns.
  void end(int64_t offset, int64_t n) {
    step({sink_.adam_kappa, sink_.adam_rho, sink_.adam_omega}, {kappa_, rho_, omega_}, offset, n);
  }
  void end_weights(int64_t offset, int64_t n) {
    step({sink_.adam_kappa, sink_.adam_rho, nullptr}, {kappa_, rho_, nullptr}, offset, n);
  }
  void end_omega(int64_t offset, int64_t n) {
    step({sink_.adam_omega, nullptr, nullptr}, {omega_, nullptr, nullptr}, offset, n);
  }

 private:
  struct Adams { const AdamTensor* at[3]; };
  struct Gradients { const float* at[3]; };

  void step(const Adams& adams, const Gradients& gradients, int64_t offset, int64_t n) const {
    const AdamTensor* tensors[3];
    const float* sources[3];
    int count = 0;
    for (int t = 0; t < 3; ++t) {
      if (!adams.at[t]) continue;
      tensors[count] = adams.at[t];
      sources[count++] = gradients.at[t];
    }
    if (count == 3) adam_of_columns<V, 3>(tensors, sources, offset, n);
    if (count == 2) adam_of_columns<V, 2>(tensors, sources, offset, n);
    if (count == 1) adam_of_columns<V, 1>(tensors, sources, offset, n);
  }

  const GradientSink& sink_;
  alignas(64) float kappa_[kBackwardChunk + 64];
  alignas(64) float rho_[kBackwardChunk + 64 + 16];
  alignas(64) float omega_[kBackwardChunk + 64 + 32];
};

// What the draws of one run of columns add up to.
template <class V>
struct DrawTerms {
  typename V::F kappa;   // sum g dw
  typename V::F tau;     // sum g dw eps
  typename V::F omega;   // sum dw w (1-g)
};

// Pointers to one row of the draws; `advance` moves between samples.
struct DrawRow {
  int64_t samples, dw_step, saved_step, eps_offset;
  const float *dw, *saved;
};

inline DrawRow draw_row(const WeightGradients& d, const Posterior& q, int64_t row) {
  const int64_t stride = padded_cols(q.cols);
  return {d.dw ? d.samples : 0, d.dw_sample_stride, d.saved_sample_stride, stride,
          d.dw + (row - d.dw_first_row) * q.cols, d.saved + row * 2 * stride};
}

// Below this a weight before gating, z, tells too little of its gate: w = g z may have been flushed to zero.
// Above it only gates below 2^-26 are.
constexpr float kTellsNothing = 0x1p-100f;

// The gate of a draw whose weight came out as next to nothing before gating (a mean of zero and a scale
// that vanishes): drawn again.
template <class V>
__attribute__((noinline, cold)) typename V::F redraw_gate(const Draw& draw, int64_t row, int64_t k,
                                                          typename V::F omega, int64_t sample) {
  const int64_t unit = k / kUnit<V> * kUnit<V>;
  const uint32_t counter = static_cast<uint32_t>(unit / 4), r = static_cast<uint32_t>(row);
  const uint32_t s = draw.sample + static_cast<uint32_t>(sample);
  alignas(64) float eps[kUnit<V>], high[kUnit<V>], low[kUnit<V>];
  normals<V, 1, true>(draw.key, draw.stream, s, r, counter, eps, high);
  gate_bits<V, 1>(draw.key, s, r, counter, low);
  const typename V::F u = V::add(V::load(high + (k - unit)), V::load(low + (k - unit)));
  return exact_gate<V>(draw, omega, u);
}

// Elementwise indicators: g = w / (kappa + tau eps), exactly 0 or 1 where the gate was.
template <class V, class Lanes>
FL_INLINE void add_gated_draw(const Draw& draw, const DrawRow& d, int64_t s, int64_t row, int64_t k,
                              const Lanes& lanes, typename V::F mean, typename V::F tau,
                              typename V::F omega, DrawTerms<V>* sum) {
  using F = typename V::F;
  const F dw = lanes.load(d.dw + s * d.dw_step + k);
  const float* saved = d.saved + s * d.saved_step + k;
  prefetch(saved, kBackwardChunk);
  prefetch(saved + d.eps_offset, kBackwardChunk);
  const F w = V::load(saved), eps = V::load(saved + d.eps_offset);
  const F z = V::fma(tau, eps, mean);
  F g = V::div(w, z);
  const typename V::Mask lost = V::lt(V::abs(z), V::set1(kTellsNothing));
  if (__builtin_expect(V::any(lost), 0)) {
    g = V::select(lost, redraw_gate<V>(draw, row, k, omega, s), g);
  }
  const F gated = V::mul(g, dw);
  sum->kappa = V::add(sum->kappa, gated);
  sum->tau = V::fma(gated, eps, sum->tau);
  sum->omega = V::fma(V::mul(dw, w), V::sub(V::set1(1.0f), g), sum->omega);
}

// Gates known (blocks) or absent: nothing to recover.
template <class V, bool kGated, class Lanes>
FL_INLINE void add_plain_draw(const DrawRow& d, int64_t s, int64_t k, const Lanes& lanes,
                              const float* gate, int64_t gate_step, DrawTerms<V>* sum) {
  using F = typename V::F;
  const F dw = lanes.load(d.dw + s * d.dw_step + k);
  const float* saved = d.saved + s * d.saved_step + k;
  prefetch(saved + d.eps_offset, kBackwardChunk);
  const F g = kGated ? V::load(gate + s * gate_step + k) : V::set1(1.0f);
  const F gated = kGated ? V::mul(g, dw) : dw;
  sum->kappa = V::add(sum->kappa, gated);
  sum->tau = V::fma(gated, V::load(saved + d.eps_offset), sum->tau);
  if (kGated) {
    sum->omega = V::fma(V::mul(dw, V::load(saved)), V::sub(V::set1(1.0f), g), sum->omega);
  }
}

// body(s) for every draw. The first stands outside the loop: there mostly is one.
template <class Body>
FL_INLINE void for_draws(int64_t samples, const Body& body) {
  if (__builtin_expect(samples == 0, 0)) return;
  body(0);
  for (int64_t s = 1; __builtin_expect(s < samples, 0); ++s) body(s);
}

template <class V>
struct Coefficients {
  typename V::F H, A, A_w, two_T, S, two_S;
  explicit Coefficients(const SumGradients& c)
      : H(V::set1(c.H)), A(V::set1(c.A)), A_w(V::set1(c.A_w)), two_T(V::set1(2.0f * c.T)),
        S(V::set1(c.S)), two_S(V::set1(2.0f * c.S)) {}
};

// d kappa and d rho from what the draws gave and the sums' gradient.
template <class V>
FL_INLINE void weight_gradients(const Coefficients<V>& c, const Scale<V>& s, typename V::F alpha,
                                typename V::F mean, const DrawTerms<V>& d, typename V::F* dkappa,
                                typename V::F* drho) {
  using F = typename V::F;
  const F pull = V::mul(c.two_S, alpha);
  *dkappa = V::fma(pull, mean, d.kappa);
  // sigmoid(rho) d tau, with sigmoid(rho) = tau * sigmoid_over_tau taken out
  const F by_tau = V::fma(pull, s.tau, d.tau);
  *drho = V::mul(s.sigmoid_over_tau, V::fma(s.tau, by_tau, V::mul(c.two_T, alpha)));
}

// c_Aw + c_T log tau^2 + c_S (kappa^2 + tau^2): a weight's share of its block's KL gradient.
template <class V>
FL_INLINE typename V::F inclusion_cost(const Coefficients<V>& c, const Scale<V>& s,
                                       typename V::F mean) {
  const typename V::F square = V::fma(mean, mean, V::mul(s.tau, s.tau));
  return V::fma(c.two_T, s.log_tau, V::fma(c.S, square, c.A_w));
}

// n <= kBackwardChunk columns of a row of the paper's model, an indicator a weight.
template <class V>
__attribute__((noinline)) void backward_gated_columns(const Posterior& posterior, const Draw& draw,
                                                      int64_t row, int64_t first, int64_t n,
                                                      const DrawRow& draws,
                                                      const Coefficients<V>& coefficients,
                                                      Run<V>* run) {
  using F = typename V::F;
  // Copies, so that the compiler knows that the stores below do not change them.
  const Posterior q = posterior;
  const DrawRow d = draws;
  const Coefficients<V> c = coefficients;
  const int64_t offset = row * q.cols + first;
  run->begin(offset, offset);
  float *to_kappa = run->kappa, *to_rho = run->rho, *to_omega = run->omega;
  alignas(64) float decay_omega[kBackwardChunk + 64], decay_rho[kBackwardChunk + 64 + 16];
  decay_of_columns<V>(q.omega + offset, n, decay_omega);
  decay_of_columns<V>(q.rho + offset, n, decay_rho);
  const F inv_temperature = V::set1(draw.hard ? 0.0f : draw.inv_temperature);
  for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
    const int64_t i = offset + k;
    prefetch(q.kappa + i, n);
    const F mean = lanes.load(q.kappa + i), r = lanes.load(q.rho + i), o = lanes.load(q.omega + i);
    const Inclusion<V> in = inclusion_from_decay<V>(o, V::load(decay_omega + k));
    const Scale<V> s = scale_from_decay<V, true>(r, V::load(decay_rho + k));
    DrawTerms<V> terms{V::set1(0.0f), V::set1(0.0f), V::set1(0.0f)};
    for_draws(d.samples, [&](int64_t sample) FL_ALWAYS {
      add_gated_draw<V>(draw, d, sample, row, first + k, lanes, mean, s.tau, o, &terms);
    });
    F dkappa, drho;
    weight_gradients<V>(c, s, in.alpha, mean, terms, &dkappa, &drho);
    const F cost = V::fma(c.H, o, V::add(c.A, inclusion_cost<V>(c, s, mean)));
    prefetch_to_write(to_kappa + k, n);
    prefetch_to_write(to_rho + k, n);
    prefetch_to_write(to_omega + k, n);
    lanes.store(to_kappa + k, dkappa);
    lanes.store(to_rho + k, drho);
    lanes.store(to_omega + k, V::fma(in.slope, cost, V::mul(terms.omega, inv_temperature)));
  });
  run->end(offset, n);
}

// A row with indicator blocks (alpha and the draws' gates spread over the columns) or with none. For
// blocks, adds to `likelihood` and `cost` what the blocks' omega are to receive.
template <class V, bool kGated>
__attribute__((noinline)) void backward_plain_row(const Posterior& posterior, int64_t row,
                                                  const DrawRow& draws,
                                                  const Coefficients<V>& coefficients,
                                                  const float* alpha, const float* gate,
                                                  int64_t gate_step, float* likelihood,
                                                  float* cost, Run<V>* run) {
  using F = typename V::F;
  const Posterior q = posterior;   // copies: see above
  const DrawRow d = draws;
  const Coefficients<V> c = coefficients;
  alignas(64) float decay[kBackwardChunk + 64];
  for (int64_t first = 0; first < q.cols; first += kBackwardChunk) {
    const int64_t n = q.cols - first < kBackwardChunk ? q.cols - first : kBackwardChunk;
    const int64_t offset = row * q.cols + first;
    run->begin(offset, 0);
    float *to_kappa = run->kappa, *to_rho = run->rho;
    decay_of_columns<V>(q.rho + offset, n, decay);
    for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
      const int64_t i = offset + k, col = first + k;
      prefetch(q.kappa + i, n);
      const F mean = lanes.load(q.kappa + i), r = lanes.load(q.rho + i);
      const Scale<V> s = scale_from_decay<V, true>(r, V::load(decay + k));
      DrawTerms<V> terms{V::set1(0.0f), V::set1(0.0f), V::set1(0.0f)};
      for_draws(d.samples, [&](int64_t sample) FL_ALWAYS {
        add_plain_draw<V, kGated>(d, sample, col, lanes, gate, gate_step, &terms);
      });
      F dkappa, drho;
      weight_gradients<V>(c, s, kGated ? V::load(alpha + col) : V::set1(1.0f), mean, terms,
                          &dkappa, &drho);
      if (kGated) {
        V::store(likelihood + col, V::add(V::load(likelihood + col), terms.omega));
        V::store(cost + col, V::add(V::load(cost + col), inclusion_cost<V>(c, s, mean)));
      }
      lanes.store(to_kappa + k, dkappa);
      lanes.store(to_rho + k, drho);
    });
    run->end_weights(offset, n);
  }
}

inline void sum_blocks(const float* columns, int64_t block_cols, int64_t cols, float* grid) {
  for (int64_t k = 0, j = 0; k < cols; ++j) {
    float sum = 0.0f;
    for (int64_t end = k + block_cols < cols ? k + block_cols : cols; k < end; ++k) {
      sum += columns[k];
    }
    grid[j] = sum;
  }
}

template <class V>
void backward_blocks(const Posterior& q, const Draw& draw, int64_t begin, int64_t end,
                     const WeightGradients& grads, const Coefficients<V>& c, Run<V>* run) {
  using F = typename V::F;
  BlockRow<V> block(q);
  const int64_t grid = q.grid_cols(), cols = padded_cols(q.cols);
  const int64_t samples = grads.dw ? grads.samples : 0;
  std::vector<float> gate(samples * cols), likelihood(cols), cost(cols);
  std::vector<float> likelihood_grid(padded_cols(grid)), cost_grid(padded_cols(grid));
  const F inv_temperature = V::set1(draw.hard ? 0.0f : draw.inv_temperature);
  for (int64_t row = begin; row < end;) {
    const int64_t i = row / q.block_rows;
    double entropy, A;
    block.template evaluate<false>(q, nullptr, i, &entropy, &A);
    expand_blocks(block.alpha_grid.data(), q.block_cols, q.cols, block.alpha.data());
    for (int64_t s = 0; s < samples; ++s) {
      expand_blocks(grads.gates + s * grads.saved_sample_stride + i * grid, q.block_cols, q.cols,
                    gate.data() + s * cols);
    }
    likelihood.assign(cols, 0.0f);
    cost.assign(cols, 0.0f);
    const int64_t last = (i + 1) * q.block_rows < end ? (i + 1) * q.block_rows : end;
    for (; row < last; ++row) {
      backward_plain_row<V, true>(q, row, draw_row(grads, q, row), c, block.alpha.data(),
                                  gate.data(), cols, likelihood.data(), cost.data(), run);
    }
    sum_blocks(likelihood.data(), q.block_cols, q.cols, likelihood_grid.data());
    sum_blocks(cost.data(), q.block_cols, q.cols, cost_grid.data());
    for (int64_t first = 0; first < grid; first += kBackwardChunk) {
      const int64_t n = grid - first < kBackwardChunk ? grid - first : kBackwardChunk;
      const int64_t offset = i * grid + first;
      run->begin(0, offset);
      for_columns<V>(n, [&](int64_t j, auto lanes) FL_ALWAYS {
        const F o = lanes.load(q.omega + offset + j);
        const F total = V::fma(c.H, o, V::add(c.A, V::load(cost_grid.data() + first + j)));
        const F data = V::load(likelihood_grid.data() + first + j);
        lanes.store(run->omega + j,
                    V::fma(inclusion<V>(o).slope, total, V::mul(data, inv_temperature)));
      });
      run->end_omega(offset, n);
    }
  }
}

template <class V>
void backward_rows(const Posterior& q, const Draw& draw, int64_t begin, int64_t end,
                   const WeightGradients& grads, const SumGradients& sum_grads,
                   const GradientSink& sink) {
  const Coefficients<V> c(sum_grads);
  Run<V> run(sink);
  if (q.gated() && !q.elementwise()) {
    backward_blocks<V>(q, draw, begin, end, grads, c, &run);
    return;
  }
  for (int64_t row = begin; row < end; ++row) {
    const DrawRow d = draw_row(grads, q, row);
    if (!q.gated()) {
      backward_plain_row<V, false>(q, row, d, c, nullptr, nullptr, 0, nullptr, nullptr, &run);
      continue;
    }
    for (int64_t first = 0; first < q.cols; first += kBackwardChunk) {
      const int64_t n = q.cols - first < kBackwardChunk ? q.cols - first : kBackwardChunk;
      backward_gated_columns<V>(q, draw, row, first, n, d, c, &run);
    }
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
