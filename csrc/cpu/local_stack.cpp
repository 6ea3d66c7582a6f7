#include "local_stack.h"

#include <algorithm>

namespace fastlbbnn {
namespace {

Floats squares(const float* x, int64_t n) {
  Floats out = floats(n);
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

// The gradients of one layer from those of its outputs.
struct LayerBackward {
  const Layer& layer;
  const float* x;        // [rows, K]
  int64_t rows;          // of the products
  const float* mean_w;
  const float* var_w;    // [N, K] each
  const float* dmean;    // [rows, N]
  Floats summed, dvar, x2;

  // dvar = dy eps / (2 std); both gradients summed over the samples that share a product.
  LayerBackward(const Layer& layer, const float* x, int64_t rows, int64_t outputs, const float* dy,
                const LocalStack::Kept& kept)
      : layer(layer), x(x), rows(rows), mean_w(kept.moments),
        var_w(kept.moments + layer.weights.rows * layer.weights.cols), dmean(dy),
        dvar(floats(rows * layer.weights.rows)), x2(squares(x, rows * layer.weights.cols)) {
    const int64_t size = rows * layer.weights.rows;
    for (int64_t j = 0; j < size; ++j) dvar[j] = dy[j] * kept.half_ratio[j];
    if (outputs == size) return;
    summed = floats(size);
    std::copy(dy, dy + size, summed.get());
    for (int64_t i = size; i < outputs; i += size) {
      for (int64_t j = 0; j < size; ++j) {
        summed[j] += dy[i + j];
        dvar[j] += dy[i + j] * kept.half_ratio[i + j];
      }
    }
    dmean = summed.get();
  }

  Matrix grad(const float* g) const { return {g, rows, layer.weights.rows, layer.weights.rows, 1}; }

  // dx = dmean m + 2 x (dvar v)
  void input_gradient(float* dx) const {
    const int64_t n = layer.weights.rows, k = layer.weights.cols;
    const Floats through_var = floats(rows * k);
    matmul(dx, k, grad(dmean), {mean_w, n, k, k, 1});
    matmul(through_var.get(), k, grad(dvar.get()), {var_w, n, k, k, 1});
    for (int64_t i = 0; i < rows * k; ++i) dx[i] += 2.0f * x[i] * through_var[i];
  }

  void parameter_gradients(const SumGradients& c, const LocalStack::Sinks& sinks) const {
    const Posterior& q = layer.weights;
    const int64_t n = q.rows, k = q.cols;
    const Panels panels(q, rows);
    for_panels(panels, [&](int64_t begin, int64_t end) {
      const int64_t size = end - begin;
      float* dm = thread_scratch(volume({2, panels.size(), k}));
      float* dv = dm + size * k;
      const Matrix dmean_panel{dmean + begin, rows, size, n, 1};
      const Matrix dvar_panel{dvar.get() + begin, rows, size, n, 1};
      matmul(dm, k, dmean_panel.t(), {x, rows, k, k, 1});
      matmul(dv, k, dvar_panel.t(), {x2.get(), rows, k, k, 1});
      kernels().moments_backward(q, begin, end, {dm, dv, begin}, c, sinks.weights);
    });
    if (!layer.has_bias()) return;
    std::vector<float> db(2 * n, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        db[j] += dmean[i * n + j];
        db[n + j] += dvar[i * n + j];
      }
    }
    kernels().moments_backward(layer.bias, 0, 1, {db.data(), db.data() + n, 0}, c, sinks.bias);
  }
};

}  // namespace

LocalStack::LocalStack(std::vector<Layer> layers, const Tensor& x, int64_t samples)
    : layers_(std::move(layers)), inputs_(x, layers_.at(0), samples), samples_(samples) {
  for (size_t l = 1; l < layers_.size(); ++l) {
    STD_TORCH_CHECK(layers_[l].weights.cols == layers_[l - 1].weights.rows, "fastlbbnn: layer ", l,
                    " takes ", layers_[l].weights.cols, " inputs and layer ", l - 1, " has ",
                    layers_[l - 1].weights.rows, " outputs");
  }
  for (const Layer& l : layers_) {
    volume({samples_, inputs_.rows, std::max(l.weights.rows, l.weights.cols)});
    volume({2, l.weights.rows, l.weights.cols});
  }
}

int64_t LocalStack::product_rows(int64_t l) const {
  return l == 0 && inputs_.shared ? inputs_.rows : samples_ * inputs_.rows;
}

Tensor LocalStack::forward(const std::vector<uint64_t>& seeds, const std::vector<Room>& room) const {
  const FlushSubnormals flush;
  std::vector<std::vector<RowSums>> sums(layers_.size());
  std::vector<LayerSums> all;
  for (int64_t l = 0; l < size(); ++l) {
    const Layer& layer = layers_[l];
    const Posterior& q = layer.weights;
    const int64_t n = q.rows, k = q.cols, rows = product_rows(l);
    const float* x = l == 0 ? inputs_.x : room[l - 1].y;
    float *mean_w = room[l].moments, *var_w = mean_w + n * k;
    sums[l].resize(layer.sum_rows());
    all.push_back({&layer, &sums[l]});
    const Floats bias = floats(layer.has_bias() ? 2 * n : 0), x2 = squares(x, rows * k);
    if (layer.has_bias()) {
      kernels().moments(layer.bias, 0, 1, bias.get(), bias.get() + n, &sums[l].back());
    }
    const Floats products = floats(2 * rows * n);
    float *mean = products.get(), *var = mean + rows * n;
    if (k == 0) std::fill(mean, mean + 2 * rows * n, 0.0f);   // there are no panels
    for_panels(Panels(q, rows), [&](int64_t begin, int64_t end) {
      kernels().moments(q, begin, end, mean_w, var_w, sums[l].data());
      const Matrix mean_panel{mean_w + begin * k, end - begin, k, k, 1};
      const Matrix var_panel{var_w + begin * k, end - begin, k, k, 1};
      matmul(mean + begin, n, {x, rows, k, k, 1}, mean_panel.t());
      matmul(var + begin, n, {x2.get(), rows, k, k, 1}, var_panel.t());
    });
    draw_outputs(l, seeds[l], mean, var, layer.has_bias() ? bias.get() : nullptr, room[l]);
    if (l + 1 == size()) break;
    float* y = room[l].y;
    for (int64_t i = 0, count = outputs_size(l); i < count; ++i) {
      // Written so that a NaN stays one, as in torch.
      y[i] = y[i] < 0.0f ? 0.0f : y[i];
    }
  }
  return reduce_sums(all);
}

void LocalStack::draw_outputs(int64_t l, uint64_t seed, const float* mean, const float* var,
                              const float* bias, const Room& room) const {
  const int64_t m = inputs_.rows, n = weights(l).rows;
  const bool shared = l == 0 && inputs_.shared;
  // Normals and a square root: less than a weight costs, more than a multiplication.
  const int64_t rows_a_thread = worth_threads(samples_ * m * n, 128) ? 16 : samples_ * m;
  parallel_for(0, n > 0 ? samples_ * m : 0, rows_a_thread, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t s = i / m, row = i % m, end = std::min(m, row + last - i);
      const int64_t product = shared ? 0 : s * m * n;
      kernels().perturb(make_draw(seed, Stream::kActivation, s, 1.0, true), row, end, n, mean + product,
                        var + product, bias, bias ? bias + n : nullptr, room.y + s * m * n,
                        room.half_ratio + s * m * n);
      i += end - row;
    }
  });
}

Tensor LocalStack::backward(const Tensor& dy, const Tensor& dsums, const std::vector<Kept>& kept,
                            bool need_dx, const std::vector<Sinks>& sinks) const {
  const FlushSubnormals flush;
  const std::vector<SumGradients> c = read_sum_gradients(dsums, size());
  const Tensor given = row_major(dy);
  check_float(given, outputs_size(size() - 1), "dy");
  const float* upstream = data(given);
  Floats hidden;
  Tensor dx = need_dx ? torch::stable::empty_like(inputs_.owned) : empty({0});   // row-major, as they are
  for (int64_t l = size() - 1; l >= 0; --l) {
    const float* x = l == 0 ? inputs_.x : kept[l - 1].y;
    const LayerBackward b(layers_[l], x, product_rows(l), outputs_size(l), upstream, kept[l]);
    // dx before the parameters: a step of Adam changes them, but not the moments.
    Floats below;
    if (l > 0) {
      const int64_t count = outputs_size(l - 1);
      below = floats(count);
      b.input_gradient(below.get());
      for (int64_t i = 0; i < count; ++i) below[i] = x[i] <= 0.0f ? 0.0f : below[i];
    } else if (need_dx) {
      b.input_gradient(mutable_data(dx));
    }
    b.parameter_gradients(c[l], sinks[l]);
    hidden = std::move(below);
    upstream = hidden.get();
  }
  return dx;
}

}  // namespace fastlbbnn
