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

// What is kept of all layers is in one tensor: draws, unless no backward pass will follow, and, of hidden
// layers, outputs. (Mirrored in fastlbbnn/ops/gated_mlp.py.)
struct Offsets {
  int64_t draws, y;
};

std::vector<Offsets> offsets(const GatedStack& stack, bool save, Parts* parts) {
  std::vector<Offsets> out;
  for (int64_t l = 0; l < stack.size(); ++l) {
    const int64_t draws = parts->add(save ? stack.draws_size(l) : 0);
    out.push_back({draws, parts->add(l + 1 < stack.size() ? stack.outputs_size(l) : 0)});
  }
  return out;
}

std::vector<GatedStack::Kept> read_kept(const GatedStack& stack, const std::vector<Tensor>& saved) {
  Parts parts;
  std::vector<GatedStack::Kept> kept;
  const std::vector<Offsets> all = offsets(stack, true, &parts);
  const float* begin = parts.read(saved);
  for (const Offsets& at : all) kept.push_back({begin + at.draws, begin + at.y});
  return kept;
}

}  // namespace

std::tuple<Tensor, Tensor, std::vector<Tensor>> gated_mlp_fwd(
    Tensor x, std::vector<Tensor> parameters, Tensor seeds, int64_t samples,
    std::vector<int64_t> blocks, std::vector<double> temperatures, bool hard, bool save) {
  const GatedStack stack = make_stack(x, parameters, seeds, samples, blocks, temperatures, hard);
  Parts parts;
  const std::vector<Offsets> all = offsets(stack, save, &parts);
  Tensor y = empty({samples, stack.batch(), stack.weights(stack.size() - 1).rows}), kept = parts.make();
  float* begin = mutable_data(kept);
  std::vector<GatedStack::Room> room;
  for (const Offsets& at : all) room.push_back({save ? begin + at.draws : nullptr, begin + at.y});
  room.back().y = mutable_data(y);
  const Tensor sums = stack.forward(room);
  return {y, sums, save ? std::vector<Tensor>{kept} : std::vector<Tensor>{}};
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
