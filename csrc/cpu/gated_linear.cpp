// y = x w' + b with sampled weights w = g (kappa + tau eps), and its gradients.
#include "ops.h"

#include <algorithm>

#include "tensors.h"

namespace fastlbbnn {
namespace {

// The sampled biases of all samples, laid out as `saved`: [S, 2, stride] (values, then eps).
std::vector<float> sample_bias(const Layer& layer, const Tensor& seed, int64_t samples,
                               RowSums* sums) {
  const int64_t stride = padded_cols(layer.bias.cols);
  std::vector<float> saved(layer.has_bias() ? samples * 2 * stride : 0);
  for (int64_t s = 0; s < samples && layer.has_bias(); ++s) {
    const Draw draw = make_draw(seed, Stream::kBias, s, 1.0, true);
    kernels().sample(layer.bias, draw, 0, 1, {saved.data() + s * 2 * stride, stride, nullptr}, true,
                     s == 0 ? sums : nullptr);
  }
  return saved;
}

void add_bias(float* y, int64_t rows, int64_t cols, const float* bias) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < cols; ++n) y[m * cols + n] += bias[n];
  }
}

// out[n] = sum_m dy[m, n]
void column_sums(const float* dy, int64_t rows, int64_t cols, float* out) {
  std::fill(out, out + cols, 0.0f);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < cols; ++n) out[n] += dy[m * cols + n];
  }
}

bool stores_gates(const Posterior& q) { return q.gated() && !q.elementwise(); }

// What is stored of one draw: the rows of weights and eps, then for blocks the gates.
int64_t draw_size(const Posterior& q) {
  const int64_t rows = q.rows * 2 * padded_cols(q.cols);
  return rows + (stores_gates(q) ? q.grid_rows() * q.grid_cols() : 0);
}

// What the backward pass of both flavours shares.
struct Backward {
  Layer layer;
  Inputs inputs;
  Tensor dy_tensor;
  const float* dy;          // [S, M, N]
  int64_t samples;
  SumGradients c;
  const float* saved;       // [S, draw_size]

  int64_t stride() const { return padded_cols(layer.weights.cols); }
  int64_t saved_step() const { return draw_size(layer.weights); }

  // dx = dy w, summed over the samples where they share x.
  Tensor input_gradient() const {
    const int64_t m = inputs.rows, n = layer.weights.rows, k = layer.weights.cols;
    const auto w = [&](int64_t s) {
      return Matrix{saved + s * saved_step(), n, k, 2 * stride(), 1};
    };
    if (!inputs.shared()) {
      Tensor dx = empty({samples, m, k});
      for (int64_t s = 0; s < samples; ++s) {
        matmul(mutable_data(dx) + s * m * k, k, {dy + s * m * n, m, n, n, 1}, w(s));
      }
      return dx;
    }
    Tensor dx = empty({m, k});
    std::vector<float> one(samples > 1 ? m * k : 0);
    float* sum = mutable_data(dx);
    matmul(sum, k, {dy, m, n, n, 1}, w(0));
    for (int64_t s = 1; s < samples; ++s) {
      matmul(one.data(), k, {dy + s * m * n, m, n, n, 1}, w(s));
      for (int64_t i = 0; i < m * k; ++i) sum[i] += one[i];
    }
    return dx;
  }

  void parameter_gradients(const Tensor& seed, double temperature, bool hard,
                           const GradientSink& weights, const GradientSink& bias) const {
    const Posterior& q = layer.weights;
    const int64_t m = inputs.rows, n = q.rows, k = q.cols;
    const Draw draw = make_draw(seed, Stream::kWeight, 0, temperature, hard);
    const Panels panels(q, m);
    torch::stable::parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t last) {
      float* dw = thread_scratch(samples * panels.size() * k);
      for (int64_t p = first; p < last; ++p) {
        const int64_t begin = panels.begin(p), end = panels.end(p), rows = end - begin;
        for (int64_t s = 0; s < samples; ++s) {
          const Matrix dy_panel{dy + s * m * n + begin, m, rows, n, 1};
          matmul(dw + s * rows * k, k, dy_panel.t(), inputs.of_sample(s));
        }
        kernels().backward(q, draw, begin, end,
                           {samples, dw, rows * k, begin, saved, saved_step(),
                            saved + n * 2 * stride()},
                           c, weights);
      }
    });
    if (!layer.has_bias()) return;
    const int64_t bias_stride = padded_cols(n);
    const std::vector<float> draws = sample_bias(layer, seed, samples, nullptr);
    std::vector<float> db(samples * n);
    for (int64_t s = 0; s < samples; ++s) column_sums(dy + s * m * n, m, n, db.data() + s * n);
    kernels().backward(layer.bias, make_draw(seed, Stream::kBias, 0, 1.0, true), 0, 1,
                       {samples, db.data(), n, 0, draws.data(), 2 * bias_stride, nullptr}, c,
                       bias);
  }
};

Backward prepare(const Tensor& dy, const Tensor& dsums, const Tensor& x, const Layer& layer,
                 const Tensor& saved, int64_t samples) {
  const Posterior& q = layer.weights;
  const Inputs inputs(x, layer, samples);
  const Tensor dy_tensor = row_major(dy);
  check_float(dy_tensor, samples * inputs.rows * q.rows, "dy");
  check_float(saved, samples * draw_size(q), "saved");
  return {layer, inputs, dy_tensor, data(dy_tensor), samples, read_sum_gradients(dsums), data(saved)};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> gated_linear_fwd(
    Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, Tensor seed, int64_t samples, int64_t block_rows, int64_t block_cols,
    double temperature, bool hard, bool save) {
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols);
  const Posterior& q = layer.weights;
  const Inputs inputs(x, layer, samples);
  const int64_t n = q.rows, k = q.cols, m = inputs.rows, stride = padded_cols(k);
  const bool keep_gates = save && stores_gates(q);

  Tensor y = empty({samples, m, n});
  Tensor saved = save ? empty({samples, draw_size(q)}) : empty({0});
  std::vector<RowSums> sums(n + layer.bias.rows);
  const std::vector<float> bias =
      sample_bias(layer, seed, samples, layer.has_bias() ? sums.data() + n : nullptr);

  // Without `save`, one sample's weights at a time live in scratch.
  const OptionalTensor scratch = save ? OptionalTensor() : OptionalTensor(empty({n, 2, stride}));
  const Panels panels(q, m);
  for (int64_t s = 0; s < samples; ++s) {
    float* w = save ? mutable_data(saved) + s * draw_size(q) : mutable_data(*scratch);
    float* g = keep_gates ? w + n * 2 * stride : nullptr;
    const Draw draw = make_draw(seed, Stream::kWeight, s, temperature, hard);
    torch::stable::parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t last) {
      kernels().sample(q, draw, panels.begin(first), panels.end(last - 1), {w, stride, g}, save,
                       s == 0 ? sums.data() : nullptr);
    });
    float* out = mutable_data(y) + s * m * n;
    matmul(out, n, inputs.of_sample(s), Matrix{w, n, k, 2 * stride, 1}.t());
    if (layer.has_bias()) add_bias(out, m, n, bias.data() + s * 2 * padded_cols(n));
  }
  return {y, reduce_sums(sums), saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_linear_bwd(
    Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega,
    OptionalTensor bias_kappa, OptionalTensor bias_rho, Tensor saved, Tensor seed,
    int64_t samples, int64_t block_rows, int64_t block_cols, double temperature, bool hard,
    bool need_dx) {
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols);
  const Backward b = prepare(dy, dsums, x, layer, saved, samples);
  Tensor dx = need_dx ? b.input_gradient() : empty({0});
  const ParameterGradients g(kappa, rho, omega, bias_kappa, bias_rho);
  b.parameter_gradients(seed, temperature, hard, g.weight_sink(), g.bias_sink());
  return {dx, g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho};
}

Tensor gated_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho,
                             OptionalTensor omega, OptionalTensor bias_kappa,
                             OptionalTensor bias_rho, Tensor saved, Tensor seed,
                             int64_t samples, int64_t block_rows, int64_t block_cols,
                             double temperature, bool hard, bool need_dx,
                             std::vector<Tensor> exp_avg, std::vector<Tensor> exp_avg_sq,
                             std::vector<double> hyper) {
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols);
  const Backward b = prepare(dy, dsums, x, layer, saved, samples);
  Tensor dx = need_dx ? b.input_gradient() : empty({0});
  const LayerAdam adam({kappa, rho, omega, bias_kappa, bias_rho}, exp_avg, exp_avg_sq, hyper);
  b.parameter_gradients(seed, temperature, hard, adam.weight_sink(), adam.bias_sink());
  return dx;
}

}  // namespace fastlbbnn
