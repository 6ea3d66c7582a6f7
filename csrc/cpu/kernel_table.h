// Builds the KernelTable of one instruction set: included once by each kernels_*.cpp, after it has
// set FASTLBBNN_ARCH and included its vector type.
#pragma once

#include "backward_rows.h"
#include "cross_entropy.h"
#include "fixed_rows.h"
#include "kernels.h"
#include "moment_rows.h"
#include "product.h"
#include "sample_rows.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

inline void sample(const Posterior& q, const Draw& draw, int64_t begin, int64_t end,
                   const Sampled& out, bool keep_eps, RowSums* sums) {
  sample_rows<Vec, true>(q, &draw, begin, end, out, keep_eps, sums);
}

inline void sums(const Posterior& q, int64_t begin, int64_t end, RowSums* out) {
  sample_rows<Vec, false>(q, nullptr, begin, end, Sampled{nullptr, 0, nullptr}, false, out);
}

inline void backward(const Posterior& q, const Draw& draw, int64_t begin, int64_t end,
                     const WeightGradients& grads, const SumGradients& c,
                     const GradientSink& sink) {
  backward_rows<Vec>(q, draw, begin, end, grads, c, sink);
}

inline void moments(const Posterior& q, int64_t begin, int64_t end, float* mean, float* var,
                    RowSums* out) {
  if (q.gated()) {
    moments_of_rows<Vec, true>(q, begin, end, mean, var, out);
  } else {
    moments_of_rows<Vec, false>(q, begin, end, mean, var, out);
  }
}

inline void moments_backward(const Posterior& q, int64_t begin, int64_t end,
                             const MomentGradients& grads, const SumGradients& c,
                             const GradientSink& sink) {
  if (q.gated()) {
    moments_backward_rows<Vec, true>(q, begin, end, grads, c, sink);
  } else {
    moments_backward_rows<Vec, false>(q, begin, end, grads, c, sink);
  }
}

inline void normals(const Draw& draw, int64_t begin, int64_t end, int64_t cols, int64_t stride,
                    float* out) {
  for (int64_t row = begin; row < end; ++row) {
    normals_of_columns<Vec, false>(draw, row, 0, cols, out + row * stride, nullptr);
  }
}

inline void gate_noise(const Draw& draw, int64_t begin, int64_t end, int64_t cols,
                       int64_t block_rows, int64_t block_cols, float* uniform, float* logit) {
  using V = Vec;
  const int64_t stride = padded_cols(cols);
  alignas(64) float eps[kUnit<V>], high[kUnit<V>];
  for (int64_t row = begin; row < end; ++row) {
    float* u = uniform + row * stride;
    gate_bits_of_columns<V>(draw, row, 0, cols, u);
    // The first bits of a block's uniform are those of its first weight: blocks may be far apart.
    int64_t unit = -1;
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t col = j * block_cols;
      if (col / kUnit<V> != unit) {
        unit = col / kUnit<V>;
        normals<V, 1, true>(draw.key, draw.stream, draw.sample, static_cast<uint32_t>(row * block_rows),
                            static_cast<uint32_t>(unit * kUnit<V> / 4), eps, high);
      }
      u[j] += high[col - unit * kUnit<V>];
    }
    for (int64_t j = 0; j < stride; j += V::kLanes) {
      V::store(logit + row * stride + j, logistic<V>(V::load(u + j)));
    }
  }
}

inline void math(int function, const float* x, float* out, int64_t n) {
  using V = Vec;
  for_columns<V>(n, [&](int64_t k, auto lanes) FL_ALWAYS {
    const V::F v = lanes.load(x + k);
    V::F y = v;
    switch (function) {
      case 0: y = exp_nonpositive<V>(v); break;
      case 1: y = log_positive<V>(v); break;
      case 2: y = log1p_unit<V>(v); break;
      case 3: y = inclusion<V>(v).alpha; break;
      case 4: y = inclusion<V>(v).slope; break;
      case 5: y = entropy<V>(inclusion<V>(v), v); break;
      default: {
        const Scale<V> s = scale_from_decay<V, true>(v, exp_nonpositive<V>(V::minus_abs(v)));
        y = function == 6 ? s.tau : function == 7 ? s.log_tau : s.sigmoid_over_tau;
      }
    }
    lanes.store(out + k, y);
  });
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn

#define FASTLBBNN_KERNEL_TABLE(symbol, label, multiply)                                       \
  namespace fastlbbnn {                                                                       \
  using namespace FASTLBBNN_ARCH;                                                             \
  const KernelTable symbol = {label,   FASTLBBNN_ARCH::sample,           FASTLBBNN_ARCH::sums, \
                              FASTLBBNN_ARCH::backward, FASTLBBNN_ARCH::moments,              \
                              FASTLBBNN_ARCH::moments_backward,                               \
                              FASTLBBNN_ARCH::perturb_rows<FASTLBBNN_ARCH::Vec>,              \
                              FASTLBBNN_ARCH::normals, FASTLBBNN_ARCH::gate_noise,            \
                              FASTLBBNN_ARCH::math, multiply,                                 \
                              FASTLBBNN_ARCH::cross_entropy<FASTLBBNN_ARCH::Vec>,             \
                              FASTLBBNN_ARCH::fixed_forward_rows<FASTLBBNN_ARCH::Vec>,        \
                              FASTLBBNN_ARCH::fixed_backward_columns<FASTLBBNN_ARCH::Vec>,    \
                              FASTLBBNN_ARCH::kTileWidth<FASTLBBNN_ARCH::Vec>,                \
                              FASTLBBNN_ARCH::fixed_draw_rows<FASTLBBNN_ARCH::Vec>,           \
                              FASTLBBNN_ARCH::drawn_backward_row<FASTLBBNN_ARCH::Vec>};       \
  }
