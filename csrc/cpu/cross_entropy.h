// Softmax of logits by rows: what the cross-entropy and its gradient are made of.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "columns.h"
#include "../common/vecmath.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// For rows of `classes` logits: gradient = softmax(logits) - [class is target]; returns the sum over rows of
//   log(sum exp(logits - max)) + max - logits[target].
// A row that holds NaN or +infinity, or nothing but -infinity, gives NaN.
template <class V>
double cross_entropy(const float* logits, const int64_t* target, int64_t rows, int64_t classes,
                     float* gradient) {
  using F = typename V::F;
  double loss = 0.0;
  for (int64_t row = 0; row < rows; ++row, logits += classes, gradient += classes) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    float most = -std::numeric_limits<float>::infinity();
    bool bounded = true;
    for (int64_t k = 0; k < classes; ++k) {
      most = logits[k] > most ? logits[k] : most;
      bounded = bounded && logits[k] <= kLargest;
    }
    if (!bounded || most < -kLargest) {
      for (int64_t k = 0; k < classes; ++k) gradient[k] = std::numeric_limits<float>::quiet_NaN();
      loss += std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const F shift = V::set1(most), nothing = V::set1(-87.0f), zero = V::set1(0.0f);
    F sums = zero;
    for_columns<V>(classes, [&](int64_t k, auto lanes) FL_ALWAYS {
      const F below = V::sub(lanes.load(logits + k), shift);
      const F e = V::select(V::lt(below, nothing), zero, exp_nonpositive<V>(below));
      lanes.store(gradient + k, e);
      sums = V::add(sums, lanes.keep(e));
    });
    const double sum = V::sum(sums);
    const F scale = V::set1(static_cast<float>(1.0 / sum));
    for_columns<V>(classes, [&](int64_t k, auto lanes) FL_ALWAYS {
      lanes.store(gradient + k, V::mul(lanes.load(gradient + k), scale));
    });
    gradient[target[row]] -= 1.0f;
    loss += std::log(sum) + (static_cast<double>(most) - static_cast<double>(logits[target[row]]));
  }
  return loss;
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
