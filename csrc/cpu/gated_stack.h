// A stack of gated linear layers with ReLU between them, in one call: forward and backward.
//
// One layer is a stack of one. Between layers there is no Python, no autograd node and no separate
// pass for bias and ReLU, which at a few hundred units a layer is a fifth of a training step.
#pragma once

#include <vector>

#include "tensors.h"

namespace fastlbbnn {

struct StackLayer {
  Layer layer;
  uint64_t seed;
  double temperature;
};

class GatedStack {
 public:
  GatedStack(std::vector<StackLayer> layers, const Tensor& x, int64_t samples, bool hard);

  struct Result {
    Tensor y;                      // [S, M, N of the last layer]
    Tensor sums;                   // [layers, 5]
    std::vector<Tensor> draws;     // with `save`: one a layer, [S, draw_size]
    std::vector<Tensor> hidden;    // with `save`: outputs of all layers but the last, [S, M, N]
  };
  Result forward(bool save) const;

  // dsums [layers, 5]; sinks[l] takes the gradients of layer l. Returns dx, empty unless wanted.
  struct Sinks {
    GradientSink weights, bias;
  };
  Tensor backward(const Tensor& dy, const Tensor& dsums, const std::vector<Tensor>& draws,
                  const std::vector<Tensor>& hidden, bool need_dx,
                  const std::vector<Sinks>& sinks) const;

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

 private:
  // The input of layer l for sample s.
  Matrix input(int64_t l, int64_t s, const std::vector<Tensor>& hidden) const;
  Tensor input_gradient(int64_t l, const Tensor& dy, const Tensor& draws) const;
  void parameter_gradients(int64_t l, const Tensor& dy, const Tensor& draws,
                           const std::vector<Tensor>& hidden, const SumGradients& c,
                           const Sinks& sinks) const;

  std::vector<StackLayer> layers_;
  Inputs inputs_;
  int64_t samples_;
  bool hard_;
};

// Floats stored of one draw: the rows of weights and eps, then for blocks the gates.
int64_t draw_size(const Posterior& q);

}  // namespace fastlbbnn
