#include "gated_stack.h"

#include <algorithm>

namespace fastlbbnn {
namespace {

bool stores_gates(const Posterior& q) { return q.gated() && !q.elementwise(); }

Draw weight_draw(const StackLayer& l, int64_t sample, bool hard) {
  return make_draw(l.seed, Stream::kWeight, sample, l.temperature, hard);
}

Draw bias_draw(const StackLayer& l, int64_t sample) {
  return make_draw(l.seed, Stream::kBias, sample, 1.0, true);
}

// The sampled biases of all samples, laid out like draws: [S, 2, stride] (values, then eps).
std::vector<float> sample_bias(const StackLayer& l, int64_t samples, RowSums* sums) {
  const int64_t stride = padded_cols(l.layer.bias.cols);
  std::vector<float> saved(l.layer.has_bias() ? samples * 2 * stride : 0);
  for (int64_t s = 0; s < samples && l.layer.has_bias(); ++s) {
    kernels().sample(l.layer.bias, bias_draw(l, s), 0, 1,
                     {saved.data() + s * 2 * stride, stride, nullptr}, true,
                     s == 0 ? sums : nullptr);
  }
  return saved;
}

// y += b, and ReLU for layers with another behind them.
void finish_outputs(float* y, int64_t rows, int64_t cols, const float* bias, bool relu) {
  for (int64_t m = 0; m < rows; ++m, y += cols) {
    if (bias) {
      for (int64_t n = 0; n < cols; ++n) y[n] += bias[n];
    }
    if (relu) {
      // Written so that a NaN stays one, as in torch.
      for (int64_t n = 0; n < cols; ++n) y[n] = y[n] < 0.0f ? 0.0f : y[n];
    }
  }
}

// out[n] = sum_m dy[m, n]
void column_sums(const float* dy, int64_t rows, int64_t cols, float* out) {
  std::fill(out, out + cols, 0.0f);
  for (int64_t m = 0; m < rows; ++m, dy += cols) {
    for (int64_t n = 0; n < cols; ++n) out[n] += dy[n];
  }
}

}  // namespace

int64_t draw_size(const Posterior& q) {
  const int64_t rows = volume({q.rows, 2 * padded_cols(q.cols)});
  return rows + (stores_gates(q) ? q.grid_rows() * q.grid_cols() : 0);
}

GatedStack::GatedStack(std::vector<StackLayer> layers, const Tensor& x, int64_t samples, bool hard)
    : layers_(std::move(layers)), inputs_(x, layers_.at(0).layer, samples), samples_(samples),
      hard_(hard) {
  for (size_t l = 1; l < layers_.size(); ++l) {
    STD_TORCH_CHECK(layers_[l].layer.weights.cols == layers_[l - 1].layer.weights.rows,
                    "fastlbbnn: layer ", l, " takes ", layers_[l].layer.weights.cols,
                    " inputs and layer ", l - 1, " has ", layers_[l - 1].layer.weights.rows,
                    " outputs");
  }
  for (const StackLayer& l : layers_) {
    const Posterior& q = l.layer.weights;
    volume({samples_, inputs_.rows, std::max(q.rows, q.cols)});
    volume({samples_, std::max(draw_size(q), 2 * padded_cols(q.rows))});
  }
}

int64_t GatedStack::draws_size(int64_t l) const { return volume({samples_, draw_size(weights(l))}); }

Matrix GatedStack::input(int64_t l, int64_t s, const float* below) const {
  if (l == 0) return inputs_.of_sample(s);
  const int64_t m = inputs_.rows, k = weights(l).cols;
  return {below + s * m * k, m, k, k, 1};
}

Tensor GatedStack::forward(const std::vector<Room>& room) const {
  const FlushSubnormals flush;
  const int64_t m = inputs_.rows;
  std::vector<std::vector<RowSums>> sums(layers_.size());
  std::vector<LayerSums> all;
  std::vector<float> scratch;
  for (int64_t l = 0; l < size(); ++l) {
    const Posterior& q = weights(l);
    const int64_t n = q.rows, k = q.cols, stride = padded_cols(k);
    const bool last = l + 1 == size(), has_bias = layers_[l].layer.has_bias();
    const bool save = room[l].draws != nullptr;
    const float* below = l > 0 ? room[l - 1].y : nullptr;
    sums[l].resize(layers_[l].layer.sum_rows());
    all.push_back({&layers_[l].layer, &sums[l]});
    if (!save) scratch.resize(n * 2 * stride);   // one sample's weights at a time
    // Where nothing is computed and nothing kept, the first draw has all there is: the sums.
    const int64_t drawn = save || outputs_size(l) > 0 ? samples_ : 1;
    const std::vector<float> bias =
        sample_bias(layers_[l], drawn, has_bias ? &sums[l].back() : nullptr);
    const Panels panels(q, m);
    for (int64_t s = 0; s < drawn; ++s) {
      float* w = save ? room[l].draws + s * draw_size(q) : scratch.data();
      float* g = save && stores_gates(q) ? w + n * 2 * stride : nullptr;
      const Draw draw = weight_draw(layers_[l], s, hard_);
      parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t end) {
        kernels().sample(q, draw, panels.begin(first), panels.end(end - 1), {w, stride, g}, save,
                         s == 0 ? sums[l].data() : nullptr);
      });
      float* y_s = room[l].y + s * m * n;
      matmul(y_s, n, input(l, s, below), Matrix{w, n, k, 2 * stride, 1}.t());
      finish_outputs(y_s, m, n, has_bias ? bias.data() + s * 2 * padded_cols(n) : nullptr, !last);
    }
  }
  return reduce_sums(all);
}

// dx = dy w; where all samples share x, summed over them.
void GatedStack::input_gradient(int64_t l, const float* dy, const float* draws, float* dx) const {
  const Posterior& q = weights(l);
  const int64_t m = inputs_.rows, n = q.rows, k = q.cols;
  const bool sum = l == 0 && inputs_.shared;
  std::vector<float> one(sum && samples_ > 1 ? m * k : 0);
  for (int64_t s = 0; s < samples_; ++s) {
    const Matrix w{draws + s * draw_size(q), n, k, 2 * padded_cols(k), 1};
    float* out = !sum ? dx + s * m * k : s == 0 ? dx : one.data();
    matmul(out, k, {dy + s * m * n, m, n, n, 1}, w);
    if (sum && s > 0) {
      for (int64_t i = 0; i < m * k; ++i) dx[i] += one[i];
    }
  }
}

void GatedStack::parameter_gradients(int64_t l, const float* dy, const float* saved, const float* below,
                                     const SumGradients& c, const Sinks& sinks) const {
  const Posterior& q = weights(l);
  const int64_t m = inputs_.rows, n = q.rows, k = q.cols;
  const Draw draw = weight_draw(layers_[l], 0, hard_);
  const Panels panels(q, m);
  parallel_for(0, panels.count(), 1, [&](int64_t first, int64_t last) {
    float* dw = thread_scratch(volume({samples_, panels.size(), k}));
    for (int64_t p = first; p < last; ++p) {
      const int64_t begin = panels.begin(p), end = panels.end(p), rows = end - begin;
      for (int64_t s = 0; s < samples_; ++s) {
        const Matrix dy_panel{dy + s * m * n + begin, m, rows, n, 1};
        matmul(dw + s * rows * k, k, dy_panel.t(), input(l, s, below));
      }
      kernels().backward(q, draw, begin, end,
                         {samples_, dw, rows * k, begin, saved, draw_size(q),
                          saved + n * 2 * padded_cols(k)},
                         c, sinks.weights);
    }
  });
  if (!layers_[l].layer.has_bias()) return;
  const std::vector<float> biases = sample_bias(layers_[l], samples_, nullptr);
  std::vector<float> db(samples_ * n);
  for (int64_t s = 0; s < samples_; ++s) column_sums(dy + s * m * n, m, n, db.data() + s * n);
  kernels().backward(layers_[l].layer.bias, bias_draw(layers_[l], 0), 0, 1,
                     {samples_, db.data(), n, 0, biases.data(), 2 * padded_cols(n), nullptr}, c,
                     sinks.bias);
}

Tensor GatedStack::backward(const Tensor& dy, const Tensor& dsums, const std::vector<Kept>& kept,
                            bool need_dx, const std::vector<Sinks>& sinks) const {
  const FlushSubnormals flush;
  const std::vector<SumGradients> c = read_sum_gradients(dsums, size());
  const Tensor given = row_major(dy);
  check_float(given, outputs_size(size() - 1), "dy");
  const float* upstream = data(given);
  Floats hidden;
  for (int64_t l = size() - 1; l > 0; --l) {
    // dx before the parameters: a step of Adam changes them, but not the draws.
    const int64_t count = outputs_size(l - 1);
    const float* h = kept[l - 1].y;
    Floats dx = floats(count);
    input_gradient(l, upstream, kept[l].draws, dx.get());
    parameter_gradients(l, upstream, kept[l].draws, h, c[l], sinks[l]);
    for (int64_t i = 0; i < count; ++i) dx[i] = h[i] > 0.0f ? dx[i] : 0.0f;
    hidden = std::move(dx);
    upstream = hidden.get();
  }
  Tensor dx = need_dx ? torch::stable::empty_like(inputs_.owned) : empty({0});   // row-major, as they are
  if (need_dx) input_gradient(0, upstream, kept[0].draws, mutable_data(dx));
  parameter_gradients(0, upstream, kept[0].draws, nullptr, c[0], sinks[0]);
  return dx;
}

}  // namespace fastlbbnn
