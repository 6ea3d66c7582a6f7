// A whole multilayer perceptron of gated layers, ReLU between them, as one operator.
#include "gated_stack.h"
#include "ops.h"

namespace fastlbbnn {
namespace {

GatedStack make_stack(const Tensor& x, const std::vector<Tensor>& parameters, const Tensor& seeds,
                      int64_t samples, const std::vector<int64_t>& blocks,
                      const std::vector<double>& temperatures, bool hard) {
  const int64_t layers = static_cast<int64_t>(temperatures.size());
  STD_TORCH_CHECK(count_layers(parameters) == layers && static_cast<int64_t>(blocks.size()) == layers * 2,
                  "fastlbbnn: an MLP needs five tensors, a block and a temperature a layer");
  const std::vector<uint64_t> seed = read_seeds(seeds, layers);
  std::vector<StackLayer> stack;
  stack.reserve(layers);
  for (int64_t l = 0; l < layers; ++l) {
    const auto p = layer_parameters(parameters, l);
    stack.push_back({Layer(*p[0], *p[1], p[2], p[3], p[4], blocks[2 * l], blocks[2 * l + 1]),
                     seed[l], temperatures[l]});
  }
  return GatedStack(std::move(stack), x, samples, hard);
}

// For each layer its draws, unless no backward pass will follow, and then, of hidden layers, its outputs.
// (Mirrored in fastlbbnn/ops/gated_mlp.py.)
Parts parts_of(const GatedStack& stack, bool save) {
  Parts parts;
  for (int64_t l = 0; l < stack.size(); ++l) {
    parts.add(save ? stack.draws_size(l) : 0);
    parts.add(l + 1 < stack.size() ? stack.outputs_size(l) : 0);
  }
  return parts;
}

std::vector<GatedStack::Kept> read_kept(const GatedStack& stack, const std::vector<Tensor>& saved) {
  const std::vector<const float*> parts = parts_of(stack, true).find(saved);
  std::vector<GatedStack::Kept> kept;
  for (size_t i = 0; i < parts.size(); i += 2) kept.push_back({parts[i], parts[i + 1]});
  return kept;
}

}  // namespace

std::tuple<Tensor, Tensor, std::vector<Tensor>> gated_mlp_fwd(
    Tensor x, std::vector<Tensor> parameters, Tensor seeds, int64_t samples,
    std::vector<int64_t> blocks, std::vector<double> temperatures, bool hard, bool save) {
  const GatedStack stack = make_stack(x, parameters, seeds, samples, blocks, temperatures, hard);
  const Parts parts = parts_of(stack, save);
  std::vector<Tensor> made = parts.make();
  const std::vector<const float*> begins = parts.find(made);
  Tensor y = empty({samples, stack.batch(), stack.weights(stack.size() - 1).rows});
  std::vector<GatedStack::Room> room;
  for (size_t i = 0; i < begins.size(); i += 2) {
    room.push_back({save ? const_cast<float*>(begins[i]) : nullptr, const_cast<float*>(begins[i + 1])});
  }
  room.back().y = mutable_data(y);
  const Tensor sums = stack.forward(room);
  if (!save) made.clear();
  return {y, sums, made};
}

std::vector<Tensor> gated_mlp_bwd(Tensor dy, Tensor dsums, Tensor x,
                                  std::vector<Tensor> parameters, std::vector<Tensor> saved,
                                  Tensor seeds, int64_t samples, std::vector<int64_t> blocks,
                                  std::vector<double> temperatures, bool hard, bool need_dx) {
  const GatedStack stack = make_stack(x, parameters, seeds, samples, blocks, temperatures, hard);
  std::vector<Tensor> grads{empty({0})};
  std::vector<GatedStack::Sinks> sinks;
  for (int64_t l = 0; l < stack.size(); ++l) {
    const auto p = layer_parameters(parameters, l);
    // With the shapes that were given, also of tensors that are empty.
    const Tensor* given = parameters.data() + l * kTensors;
    const ParameterGradients g(*p[0], *p[1], given[2], given[3], given[4]);
    sinks.push_back({g.weight_sink(), g.bias_sink()});
    grads.insert(grads.end(), {g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho});
  }
  grads[0] = stack.backward(dy, dsums, read_kept(stack, saved), need_dx, sinks);
  return grads;
}

Tensor gated_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                          std::vector<Tensor> saved, Tensor seeds, int64_t samples,
                          std::vector<int64_t> blocks, std::vector<double> temperatures, bool hard,
                          bool need_dx, std::vector<Tensor> exp_avg,
                          std::vector<Tensor> exp_avg_sq, std::vector<double> hyper) {
  const GatedStack stack = make_stack(x, parameters, seeds, samples, blocks, temperatures, hard);
  std::vector<LayerAdam> adams = layer_adams(parameters, exp_avg, exp_avg_sq, hyper);
  std::vector<GatedStack::Sinks> sinks;
  for (const LayerAdam& adam : adams) sinks.push_back({adam.weight_sink(), adam.bias_sink()});
  const Tensor dx = stack.backward(dy, dsums, read_kept(stack, saved), need_dx, sinks);
  for (LayerAdam& adam : adams) adam.write_back();
  return dx;
}

}  // namespace fastlbbnn
