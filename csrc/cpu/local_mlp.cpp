// A whole multilayer perceptron by local reparametrisation, ReLU between its layers, as one operator.
#include "local_stack.h"
#include "ops.h"

namespace fastlbbnn {
namespace {

LocalStack make_stack(const Tensor& x, const std::vector<Tensor>& parameters, int64_t samples) {
  std::vector<Layer> layers;
  const int64_t count = count_layers(parameters);
  layers.reserve(count);
  for (int64_t l = 0; l < count; ++l) {
    const auto p = layer_parameters(parameters, l);
    layers.emplace_back(*p[0], *p[1], p[2], p[3], p[4], 1, 1);
  }
  return LocalStack(std::move(layers), x, samples);
}

// For each layer its moments, half ratios and, of hidden layers, outputs. (Mirrored in
// fastlbbnn/ops/local_mlp.py.)
Parts parts_of(const LocalStack& stack) {
  Parts parts;
  for (int64_t l = 0; l < stack.size(); ++l) {
    parts.add(stack.moments_size(l));
    parts.add(stack.outputs_size(l));
    parts.add(l + 1 < stack.size() ? stack.outputs_size(l) : 0);
  }
  return parts;
}

std::vector<LocalStack::Kept> read_kept(const LocalStack& stack, const std::vector<Tensor>& saved) {
  const std::vector<const float*> parts = parts_of(stack).find(saved);
  std::vector<LocalStack::Kept> kept;
  for (size_t i = 0; i < parts.size(); i += 3) kept.push_back({parts[i], parts[i + 1], parts[i + 2]});
  return kept;
}

}  // namespace

std::tuple<Tensor, Tensor, std::vector<Tensor>> local_mlp_fwd(Tensor x, std::vector<Tensor> parameters,
                                                              Tensor seeds, int64_t samples) {
  const LocalStack stack = make_stack(x, parameters, samples);
  const std::vector<uint64_t> seed = read_seeds(seeds, stack.size());
  const Parts parts = parts_of(stack);
  std::vector<Tensor> saved = parts.make();
  const std::vector<const float*> begins = parts.find(saved);
  Tensor y = empty({samples, stack.batch(), stack.weights(stack.size() - 1).rows});
  std::vector<LocalStack::Room> room;
  for (size_t i = 0; i < begins.size(); i += 3) {
    room.push_back({const_cast<float*>(begins[i]), const_cast<float*>(begins[i + 1]),
                    const_cast<float*>(begins[i + 2])});
  }
  room.back().y = mutable_data(y);
  const Tensor sums = stack.forward(seed, room);
  return {y, sums, saved};
}

std::vector<Tensor> local_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                                  std::vector<Tensor> saved, int64_t samples, bool need_dx) {
  const LocalStack stack = make_stack(x, parameters, samples);
  const std::vector<LocalStack::Kept> kept = read_kept(stack, saved);
  std::vector<Tensor> grads{empty({0})};
  std::vector<LocalStack::Sinks> sinks;
  for (int64_t l = 0; l < stack.size(); ++l) {
    // With the shapes that were given, also of tensors that are empty.
    const Tensor* p = parameters.data() + l * kTensors;
    const ParameterGradients g(p[0], p[1], p[2], p[3], p[4]);
    sinks.push_back({g.weight_sink(), g.bias_sink()});
    grads.insert(grads.end(), {g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho});
  }
  grads[0] = stack.backward(dy, dsums, kept, need_dx, sinks);
  return grads;
}

Tensor local_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                          std::vector<Tensor> saved, int64_t samples, bool need_dx,
                          std::vector<Tensor> exp_avg, std::vector<Tensor> exp_avg_sq,
                          std::vector<double> hyper) {
  const LocalStack stack = make_stack(x, parameters, samples);
  const std::vector<LocalStack::Kept> kept = read_kept(stack, saved);
  std::vector<LayerAdam> adams = layer_adams(parameters, exp_avg, exp_avg_sq, hyper);
  std::vector<LocalStack::Sinks> sinks;
  for (const LayerAdam& adam : adams) sinks.push_back({adam.weight_sink(), adam.bias_sink()});
  const Tensor dx = stack.backward(dy, dsums, kept, need_dx, sinks);
  for (LayerAdam& adam : adams) adam.write_back();
  return dx;
}

}  // namespace fastlbbnn
