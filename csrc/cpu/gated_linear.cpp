// y = x w' + b with sampled weights w = g (kappa + tau eps), and its gradients: a stack of one.
#include "gated_stack.h"
#include "ops.h"

namespace fastlbbnn {
namespace {

GatedStack one_layer(const Tensor& x, const Tensor& kappa, const Tensor& rho,
                     const OptionalTensor& omega, const OptionalTensor& bias_kappa,
                     const OptionalTensor& bias_rho, const Tensor& seed, int64_t samples,
                     int64_t block_rows, int64_t block_cols, double temperature, bool hard) {
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols);
  return GatedStack({{layer, read_seeds(seed, 1)[0], temperature}}, x, samples, hard);
}

GatedStack::Kept checked(const GatedStack& stack, const Tensor& draws) {
  check_float(draws, stack.draws_size(0), "draws");
  return {data(draws), nullptr};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> gated_linear_fwd(
    Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, Tensor seed, int64_t samples, int64_t block_rows, int64_t block_cols,
    double temperature, bool hard, bool save) {
  const GatedStack stack = one_layer(x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples,
                                     block_rows, block_cols, temperature, hard);
  Tensor y = empty({samples, stack.batch(), stack.weights(0).rows});
  Tensor draws = save ? empty({samples, draw_size(stack.weights(0))}) : empty({0});
  const Tensor sums = stack.forward({{save ? mutable_data(draws) : nullptr, mutable_data(y)}});
  return {y, torch::stable::view(sums, {5}), draws};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_linear_bwd(
    Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega,
    OptionalTensor bias_kappa, OptionalTensor bias_rho, Tensor saved, Tensor seed,
    int64_t samples, int64_t block_rows, int64_t block_cols, double temperature, bool hard,
    bool need_dx) {
  const GatedStack stack = one_layer(x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples,
                                     block_rows, block_cols, temperature, hard);
  const ParameterGradients g(kappa, rho, omega, bias_kappa, bias_rho);
  Tensor dx =
      stack.backward(dy, dsums, {checked(stack, saved)}, need_dx, {{g.weight_sink(), g.bias_sink()}});
  return {dx, g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho};
}

Tensor gated_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho,
                             OptionalTensor omega, OptionalTensor bias_kappa,
                             OptionalTensor bias_rho, Tensor saved, Tensor seed, int64_t samples,
                             int64_t block_rows, int64_t block_cols, double temperature, bool hard,
                             bool need_dx, std::vector<Tensor> exp_avg,
                             std::vector<Tensor> exp_avg_sq, std::vector<double> hyper) {
  const GatedStack stack = one_layer(x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples,
                                     block_rows, block_cols, temperature, hard);
  check_adam(1, exp_avg, exp_avg_sq, hyper);
  LayerAdam adam({kappa, rho, omega, bias_kappa, bias_rho}, exp_avg.data(), exp_avg_sq.data(),
                 hyper.data());
  const Tensor dx = stack.backward(dy, dsums, {checked(stack, saved)}, need_dx,
                                   {{adam.weight_sink(), adam.bias_sink()}});
  adam.write_back();
  return dx;
}

}  // namespace fastlbbnn
