// The five sums of a layer without a draw, and their gradients.
#include "ops.h"

namespace fastlbbnn {

Tensor kl_sums_fwd(Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
                   OptionalTensor bias_rho, int64_t block_rows, int64_t block_cols) {
  const FlushSubnormals flush;
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols);
  std::vector<RowSums> sums(layer.sum_rows());
  const Panels panels(layer.weights, 0);
  parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      kernels().sums(layer.weights, panels.begin(p), panels.end(p), sums.data());
    }
  });
  if (layer.has_bias()) kernels().sums(layer.bias, 0, 1, &sums.back());
  return torch::stable::view(reduce_sums({{&layer, &sums}}), {5});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> kl_sums_bwd(
    Tensor dsums, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, int64_t block_rows, int64_t block_cols) {
  const FlushSubnormals flush;
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols);
  const ParameterGradients g(kappa, rho, omega, bias_kappa, bias_rho);
  const SumGradients c = read_sum_gradients(dsums, 1)[0];
  const Draw no_draw{PhiloxKey(0), Stream::kWeight, 0, true, 0.0f};
  const WeightGradients no_data{0, nullptr, 0, 0, nullptr, 0, nullptr};
  const Panels panels(layer.weights, 0);
  parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      kernels().backward(layer.weights, no_draw, panels.begin(p), panels.end(p), no_data, c,
                         g.weight_sink());
    }
  });
  if (layer.has_bias()) kernels().backward(layer.bias, no_draw, 0, 1, no_data, c, g.bias_sink());
  return {g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho};
}

}  // namespace fastlbbnn
