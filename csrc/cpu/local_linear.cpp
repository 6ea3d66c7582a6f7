// Local reparametrisation of one layer, and its gradients: a stack of one.
#include "local_stack.h"
#include "ops.h"

namespace fastlbbnn {
namespace {

LocalStack::Kept checked(const LocalStack& stack, const Tensor& moments, const Tensor& half_ratio) {
  check_float(half_ratio, stack.outputs_size(0), "half_ratio");
  check_float(moments, stack.moments_size(0), "moments");
  return {data(moments), data(half_ratio), nullptr};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> local_linear_fwd(
    Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, Tensor seed, int64_t samples) {
  const LocalStack stack({Layer(kappa, rho, omega, bias_kappa, bias_rho, 1, 1)}, x, samples);
  const int64_t n = stack.weights(0).rows, k = stack.weights(0).cols, m = stack.batch();
  Tensor y = empty({samples, m, n}), half_ratio = empty({samples, m, n}), moments = empty({2, n, k});
  const Tensor sums = stack.forward(
      read_seeds(seed, 1), {{mutable_data(moments), mutable_data(half_ratio), mutable_data(y)}});
  return {y, torch::stable::view(sums, {5}), moments, half_ratio};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> local_linear_bwd(
    Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega,
    OptionalTensor bias_kappa, OptionalTensor bias_rho, Tensor moments, Tensor half_ratio,
    int64_t samples, bool need_dx) {
  const LocalStack stack({Layer(kappa, rho, omega, bias_kappa, bias_rho, 1, 1)}, x, samples);
  const LocalStack::Kept kept = checked(stack, moments, half_ratio);
  const ParameterGradients g(kappa, rho, omega, bias_kappa, bias_rho);
  Tensor dx = stack.backward(dy, dsums, {kept}, need_dx, {{g.weight_sink(), g.bias_sink()}});
  return {dx, g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho};
}

Tensor local_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho,
                             OptionalTensor omega, OptionalTensor bias_kappa,
                             OptionalTensor bias_rho, Tensor moments, Tensor half_ratio,
                             int64_t samples, bool need_dx, std::vector<Tensor> exp_avg,
                             std::vector<Tensor> exp_avg_sq, std::vector<double> hyper) {
  const LocalStack stack({Layer(kappa, rho, omega, bias_kappa, bias_rho, 1, 1)}, x, samples);
  const LocalStack::Kept kept = checked(stack, moments, half_ratio);
  check_adam(1, exp_avg, exp_avg_sq, hyper);
  LayerAdam adam({kappa, rho, omega, bias_kappa, bias_rho}, exp_avg.data(), exp_avg_sq.data(),
                 hyper.data());
  Tensor dx = stack.backward(dy, dsums, {kept}, need_dx, {{adam.weight_sink(), adam.bias_sink()}});
  adam.write_back();
  return dx;
}

}  // namespace fastlbbnn
