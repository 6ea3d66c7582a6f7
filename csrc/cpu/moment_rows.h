// Local reparametrisation: the weights of the mean and of the variance of an activation,
//   mean = alpha kappa,   var = alpha (tau^2 + (1-alpha) kappa^2),
// and back. Elementwise indicators, or none (alpha = 1).
#pragma once

#include <cstdint>

#include "backward_rows.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

template <class V, bool kGated>
void moments_of_rows(const Posterior& q, int64_t begin, int64_t end, float* mean, float* var,
                     RowSums* sums) {
  using F = typename V::F;
  const F zero = V::set1(0.0f), one = V::set1(1.0f);
  GateScratch scratch;
  alignas(64) float alpha[kChunk + 64 + 16], decay[kChunk + 64 + 32];
  for (int64_t row = begin; row < end; ++row) {
    GateSums<V> gates{zero, zero};
    F A_w = zero, T = zero, S = zero;
    for (int64_t first = 0; first < q.cols; first += kChunk) {
      const int64_t n = q.cols - first < kChunk ? q.cols - first : kChunk;
      const int64_t offset = row * q.cols + first;
      if (kGated) {
        gates_of_columns<V, false>(nullptr, q.omega + offset, row, first, n, scratch, alpha,
                                   nullptr, &gates);
      }
      decay_of_columns<V>(q.rho + offset, n, decay);
      for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
        const int64_t i = offset + k;
        const F m = lanes.load(q.kappa + i), r = lanes.load(q.rho + i);
        const Scale<V> s = scale_from_decay<V, false>(r, V::load(decay + k));
        const F a = kGated ? V::load(alpha + k) : one;
        const F m2 = V::mul(m, m), t2 = V::mul(s.tau, s.tau);
        lanes.store(mean + i, kGated ? V::mul(a, m) : m);
        lanes.store(var + i, kGated ? V::mul(a, V::fma(V::sub(one, a), m2, t2)) : t2);
        const F kept = lanes.keep(a);
        A_w = V::add(A_w, kept);
        T = V::fma(kept, s.log_tau, T);
        S = V::fma(kept, V::add(m2, t2), S);
      });
    }
    sums[row] = {-V::sum(gates.entropy), V::sum(gates.A), V::sum(A_w), 2.0 * V::sum(T),
                 V::sum(S)};
  }
}

template <class V>
void perturb_rows(const Draw& draw, int64_t begin, int64_t end, int64_t cols, const float* mean,
                  const float* var, const float* bias_mean, const float* bias_var, float* y,
                  float* half_ratio) {
  using F = typename V::F;
  const F floor = V::set1(kMinVariance), half = V::set1(0.5f), zero = V::set1(0.0f);
  alignas(64) float eps[kChunk + 64];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < cols; first += kChunk) {
      const int64_t n = cols - first < kChunk ? cols - first : kChunk;
      normals_of_columns<V, false>(draw, row, first, n, eps, nullptr);
      for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
        const int64_t i = row * cols + first + k;
        F m = lanes.load(mean + i), v = lanes.load(var + i);
        if (bias_mean) {
          m = V::add(m, lanes.load(bias_mean + first + k));
          v = V::add(v, lanes.load(bias_var + first + k));
        }
        const F std = V::sqrt(V::max(v, floor)), e = V::load(eps + k);
        lanes.store(y + i, V::fma(e, std, m));
        const F ratio = V::div(V::mul(e, half), std);
        lanes.store(half_ratio + i, V::select(V::lt(v, floor), zero, ratio));
      });
    }
  }
}

// d kappa = alpha (dmean + 2 (1-alpha) kappa dvar)               + the sums' part
// d tau   = 2 alpha tau dvar
// d alpha = kappa dmean + (tau^2 + (1 - 2 alpha) kappa^2) dvar
template <class V, bool kGated>
void moments_backward_rows(const Posterior& q, int64_t begin, int64_t end,
                           const MomentGradients& grads, const SumGradients& sum_grads,
                           const GradientSink& sink) {
  using F = typename V::F;
  const Coefficients<V> c(sum_grads);
  Run<V> run(sink);
  const F one = V::set1(1.0f), two = V::set1(2.0f);
  alignas(64) float decay_omega[kBackwardChunk + 64], decay_rho[kBackwardChunk + 64 + 16];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < q.cols; first += kBackwardChunk) {
      const int64_t n = q.cols - first < kBackwardChunk ? q.cols - first : kBackwardChunk;
      const int64_t offset = row * q.cols + first;
      const float* dmean = grads.dmean + (row - grads.first_row) * q.cols + first;
      const float* dvar = grads.dvar + (row - grads.first_row) * q.cols + first;
      run.begin(offset, offset);
      float *to_kappa = run.kappa, *to_rho = run.rho, *to_omega = run.omega;
      if (kGated) decay_of_columns<V>(q.omega + offset, n, decay_omega);
      decay_of_columns<V>(q.rho + offset, n, decay_rho);
      for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
        const int64_t i = offset + k;
        const F m = lanes.load(q.kappa + i), r = lanes.load(q.rho + i);
        const F dm = lanes.load(dmean + k), dv = lanes.load(dvar + k);
        const Scale<V> s = scale_from_decay<V, true>(r, V::load(decay_rho + k));
        F dkappa, drho;
        if (!kGated) {
          const DrawTerms<V> terms{dm, V::mul(two, V::mul(s.tau, dv)), one};
          weight_gradients<V>(c, s, one, m, terms, &dkappa, &drho);
        } else {
          const F o = lanes.load(q.omega + i);
          const Inclusion<V> in = inclusion_from_decay<V>(o, V::load(decay_omega + k));
          const F a = in.alpha, rest = V::sub(one, a), scaled = V::mul(two, V::mul(a, dv));
          const DrawTerms<V> terms{V::fma(V::mul(scaled, rest), m, V::mul(a, dm)),
                                   V::mul(scaled, s.tau), one};
          weight_gradients<V>(c, s, a, m, terms, &dkappa, &drho);
          const F spread = V::fma(V::sub(rest, a), V::mul(m, m), V::mul(s.tau, s.tau));
          const F dalpha = V::fma(m, dm, V::mul(spread, dv));
          const F cost = V::fma(c.H, o, V::add(c.A, inclusion_cost<V>(c, s, m)));
          lanes.store(to_omega + k, V::mul(in.slope, V::add(cost, dalpha)));
        }
        lanes.store(to_kappa + k, dkappa);
        lanes.store(to_rho + k, drho);
      });
      kGated ? run.end(offset, n) : run.end_weights(offset, n);
    }
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
