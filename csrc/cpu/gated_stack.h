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

  // Where the forward pass writes, for each layer.
  struct Room {
    float* draws;   // [S, draw_size], or nullptr where no backward pass will follow
    float* y;       // [S, M, N]: outputs, those of a hidden layer after ReLU
  };
  // Returns the sums [layers, 5].
  Tensor forward(const std::vector<Room>& room) const;

  // The same, to read; of the last layer without y.
  struct Kept {
    const float *draws, *y;
  };
  // dsums [layers, 5]; sinks[l] takes the gradients of layer l. Returns dx, empty unless wanted.
  struct Sinks {
    GradientSink weights, bias;
  };
  Tensor backward(const Tensor& dy, const Tensor& dsums, const std::vector<Kept>& kept, bool need_dx,
                  const std::vector<Sinks>& sinks) const;

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  const Posterior& weights(int64_t l) const { return layers_[l].layer.weights; }
  // Elements of a layer's draws, and of its outputs.
  int64_t draws_size(int64_t l) const;
  int64_t outputs_size(int64_t l) const { return volume({samples_, inputs_.rows, weights(l).rows}); }
  int64_t batch() const { return inputs_.rows; }

 private:
  // The input of layer l for sample s; `below` are the outputs of the layer before.
  Matrix input(int64_t l, int64_t s, const float* below) const;
  void input_gradient(int64_t l, const float* dy, const float* draws, float* dx) const;
  void parameter_gradients(int64_t l, const float* dy, const float* draws, const float* below,
                           const SumGradients& c, const Sinks& sinks) const;

  std::vector<StackLayer> layers_;
  Inputs inputs_;
  int64_t samples_;
  bool hard_;
};

// Floats stored of one draw: the rows of weights and eps, then for blocks the gates.
int64_t draw_size(const Posterior& q);

}  // namespace fastlbbnn
