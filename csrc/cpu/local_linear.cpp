// Local reparametrisation: one draw an activation instead of one a weight, and its gradients.
//   mean = x m' + b,  var = (x*x) v' + tau_b^2,  y = mean + eps sqrt(var)
// with m = alpha kappa and v = alpha (tau^2 + (1-alpha) kappa^2). Samples that share x share both
// products.
#include <algorithm>

#include "ops.h"

namespace fastlbbnn {
namespace {

std::vector<float> squares(const float* x, int64_t n) {
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * x[i];
  return out;
}

// Calls body(begin, end) for panels of the layer's rows, on all threads.
template <class Body>
void for_panels(const Panels& panels, const Body& body) {
  parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) body(panels.begin(p), panels.end(p));
  });
}

struct Backward {
  Layer layer;
  Inputs inputs;
  int64_t rows;                        // of the products: M, or S M where samples have their own x
  std::vector<float> dmean, dvar;      // [rows, N]
  std::vector<float> x2;
  const float *mean_w, *var_w;
  SumGradients c;

  Backward(const Tensor& dy, const Tensor& dsums, const Tensor& x, const Layer& layer,
           const Tensor& moments, const Tensor& half_ratio, int64_t samples)
      : layer(layer), inputs(x, layer, samples),
        rows(inputs.shared ? inputs.rows : samples * inputs.rows), c(read_sum_gradients(dsums, 1)[0]) {
    const int64_t n = layer.weights.rows, k = layer.weights.cols;
    volume({samples, inputs.rows, n});
    const Tensor dy_tensor = row_major(dy);
    const float* upstream = data(dy_tensor);
    check_float(dy_tensor, samples * inputs.rows * n, "dy");
    check_float(half_ratio, samples * inputs.rows * n, "half_ratio");
    check_float(moments, 2 * n * k, "moments");
    const float* ratio = data(half_ratio);
    mean_w = data(moments);
    var_w = mean_w + n * k;
    x2 = squares(inputs.x, rows * k);
    // dvar = dy eps / (2 std), summed over the samples that share a product.
    dmean.assign(rows * n, 0.0f);
    dvar.assign(rows * n, 0.0f);
    const int64_t size = rows * n;
    for (int64_t i = 0; i < samples * inputs.rows * n; i += size) {
      for (int64_t j = 0; j < size; ++j) {
        dmean[j] += upstream[i + j];
        dvar[j] += upstream[i + j] * ratio[i + j];
      }
    }
  }

  Matrix grad(const std::vector<float>& g) const {
    const int64_t n = layer.weights.rows;
    return {g.data(), rows, n, n, 1};
  }

  // dx = dmean m + 2 x (dvar v)
  Tensor input_gradient() const {
    const int64_t n = layer.weights.rows, k = layer.weights.cols;
    Tensor dx = torch::stable::empty_like(inputs.owned);   // row-major, as they are
    std::vector<float> through_var(rows * k);
    matmul(mutable_data(dx), k, grad(dmean), {mean_w, n, k, k, 1});
    matmul(through_var.data(), k, grad(dvar), {var_w, n, k, k, 1});
    float* out = mutable_data(dx);
    for (int64_t i = 0; i < rows * k; ++i) out[i] += 2.0f * inputs.x[i] * through_var[i];
    return dx;
  }

  void parameter_gradients(const GradientSink& weights, const GradientSink& bias) const {
    const Posterior& q = layer.weights;
    const int64_t n = q.rows, k = q.cols;
    const Panels panels(q, rows);
    for_panels(panels, [&](int64_t begin, int64_t end) {
      const int64_t size = end - begin;
      float* dm = thread_scratch(volume({2, panels.size(), k}));
      float* dv = dm + size * k;
      const Matrix dmean_panel{dmean.data() + begin, rows, size, n, 1};
      const Matrix dvar_panel{dvar.data() + begin, rows, size, n, 1};
      matmul(dm, k, dmean_panel.t(), {inputs.x, rows, k, k, 1});
      matmul(dv, k, dvar_panel.t(), {x2.data(), rows, k, k, 1});
      kernels().moments_backward(q, begin, end, {dm, dv, begin}, c, weights);
    });
    if (!layer.has_bias()) return;
    std::vector<float> db(2 * n, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        db[j] += dmean[i * n + j];
        db[n + j] += dvar[i * n + j];
      }
    }
    kernels().moments_backward(layer.bias, 0, 1, {db.data(), db.data() + n, 0}, c, bias);
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> local_linear_fwd(
    Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, Tensor seed, int64_t samples) {
  const FlushSubnormals flush;
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, 1, 1);
  const Posterior& q = layer.weights;
  const Inputs inputs(x, layer, samples);
  const int64_t n = q.rows, k = q.cols, m = inputs.rows;
  const int64_t rows = inputs.shared ? m : samples * m;

  volume({samples, m, n});
  Tensor y = empty({samples, m, n}), half_ratio = empty({samples, m, n}), moments = empty({2, n, k});
  float *mean_w = mutable_data(moments), *var_w = mean_w + n * k;
  std::vector<RowSums> sums(layer.sum_rows());
  std::vector<float> bias(layer.has_bias() ? 2 * n : 0), x2 = squares(inputs.x, rows * k);
  std::vector<float> mean(rows * n), var(rows * n);
  if (layer.has_bias()) {
    kernels().moments(layer.bias, 0, 1, bias.data(), bias.data() + n, &sums.back());
  }
  for_panels(Panels(q, rows), [&](int64_t begin, int64_t end) {
    kernels().moments(q, begin, end, mean_w, var_w, sums.data());
    const Matrix mean_panel{mean_w + begin * k, end - begin, k, k, 1};
    const Matrix var_panel{var_w + begin * k, end - begin, k, k, 1};
    matmul(mean.data() + begin, n, {inputs.x, rows, k, k, 1}, mean_panel.t());
    matmul(var.data() + begin, n, {x2.data(), rows, k, k, 1}, var_panel.t());
  });

  const uint64_t draw_seed = read_seeds(seed, 1)[0];
  // Normals and a square root: less than a weight costs, more than a multiplication.
  const int64_t rows_a_thread = worth_threads(samples * m * n, 128) ? 16 : samples * m;
  parallel_for(0, n > 0 ? samples * m : 0, rows_a_thread, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t s = i / m, row = i % m, end = std::min(m, row + last - i);
      const int64_t product = inputs.shared ? 0 : s * m * n;
      kernels().perturb(make_draw(draw_seed, Stream::kActivation, s, 1.0, true), row, end, n,
                        mean.data() + product, var.data() + product,
                        layer.has_bias() ? bias.data() : nullptr, bias.data() + n,
                        mutable_data(y) + s * m * n, mutable_data(half_ratio) + s * m * n);
      i += end - row;
    }
  });
  return {y, torch::stable::view(reduce_sums({{&layer, &sums}}), {5}), moments, half_ratio};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> local_linear_bwd(
    Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega,
    OptionalTensor bias_kappa, OptionalTensor bias_rho, Tensor moments, Tensor half_ratio,
    int64_t samples, bool need_dx) {
  const FlushSubnormals flush;
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, 1, 1);
  const Backward b(dy, dsums, x, layer, moments, half_ratio, samples);
  Tensor dx = need_dx ? b.input_gradient() : empty({0});
  const ParameterGradients g(kappa, rho, omega, bias_kappa, bias_rho);
  b.parameter_gradients(g.weight_sink(), g.bias_sink());
  return {dx, g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho};
}

Tensor local_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho,
                             OptionalTensor omega, OptionalTensor bias_kappa,
                             OptionalTensor bias_rho, Tensor moments, Tensor half_ratio,
                             int64_t samples, bool need_dx, std::vector<Tensor> exp_avg,
                             std::vector<Tensor> exp_avg_sq, std::vector<double> hyper) {
  const FlushSubnormals flush;
  const Layer layer(kappa, rho, omega, bias_kappa, bias_rho, 1, 1);
  const Backward b(dy, dsums, x, layer, moments, half_ratio, samples);
  Tensor dx = need_dx ? b.input_gradient() : empty({0});
  check_adam(1, exp_avg, exp_avg_sq, hyper);
  LayerAdam adam({kappa, rho, omega, bias_kappa, bias_rho}, exp_avg.data(), exp_avg_sq.data(),
                 hyper.data());
  b.parameter_gradients(adam.weight_sink(), adam.bias_sink());
  adam.write_back();
  return dx;
}

}  // namespace fastlbbnn
