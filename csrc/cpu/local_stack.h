// A stack of layers by local reparametrisation with ReLU between them, in one call: forward and backward.
//
// One draw an activation instead of one a weight:
//   mean = x m' + b,  var = (x*x) v' + tau_b^2,  y = mean + eps sqrt(var)
// with m = alpha kappa and v = alpha (tau^2 + (1-alpha) kappa^2). Samples that share x share both products.
#pragma once

#include <vector>

#include "tensors.h"

namespace fastlbbnn {

class LocalStack {
 public:
  LocalStack(std::vector<Layer> layers, const Tensor& x, int64_t samples);

  // Where the forward pass writes what it gives and what the backward pass needs, for each layer.
  struct Room {
    float* moments;      // [2, N, K]: the weights of the means and of the variances
    float* half_ratio;   // [S, M, N]: eps / (2 std)
    float* y;            // [S, M, N]: outputs, those of a hidden layer after ReLU
  };
  // Returns the sums [layers, 5].
  Tensor forward(const std::vector<uint64_t>& seeds, const std::vector<Room>& room) const;

  // The same, to read; of the last layer without y.
  struct Kept {
    const float *moments, *half_ratio, *y;
  };
  // dsums [layers, 5]; sinks[l] takes the gradients of layer l. Returns dx, empty unless wanted.
  struct Sinks {
    GradientSink weights, bias;
  };
  Tensor backward(const Tensor& dy, const Tensor& dsums, const std::vector<Kept>& kept, bool need_dx,
                  const std::vector<Sinks>& sinks) const;

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  const Posterior& weights(int64_t l) const { return layers_[l].weights; }
  // Elements of a layer's moments, and of its outputs.
  int64_t moments_size(int64_t l) const { return volume({2, weights(l).rows, weights(l).cols}); }
  int64_t outputs_size(int64_t l) const { return volume({samples_, inputs_.rows, weights(l).rows}); }
  int64_t batch() const { return inputs_.rows; }

 private:
  // Rows of a layer's products: M, or S M where samples have inputs of their own.
  int64_t product_rows(int64_t l) const;
  void draw_outputs(int64_t l, uint64_t seed, const float* mean, const float* var, const float* bias,
                    const Room& room) const;

  std::vector<Layer> layers_;
  Inputs inputs_;
  int64_t samples_;
};

}  // namespace fastlbbnn
