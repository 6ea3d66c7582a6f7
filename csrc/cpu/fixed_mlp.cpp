// A stack of layers of a fixed structure, ReLU between them, as one operator: only kept weights are stored
// and only they are computed with. Formulas: fixed_rows.h.
#include <algorithm>
#include <cstring>
#include <string>

#include "ops.h"

namespace fastlbbnn {
namespace {

constexpr int64_t kIndices = 5;   // row_offsets, columns, col_offsets, rows_of, positions
constexpr int64_t kWeights = 4096;   // weights that are worked on together where they stand in a row

int64_t padded(int64_t n) { return (n + kWidthUnit - 1) / kWidthUnit * kWidthUnit; }

enum class Estimator { kLocal, kSampled, kMeans };

Estimator estimator_of(const std::string& name) {
  if (name == "local") return Estimator::kLocal;
  if (name == "sampled") return Estimator::kSampled;
  STD_TORCH_CHECK(name == "means", "fastlbbnn: estimator is ", name,
                  "; expected local, sampled or means");
  return Estimator::kMeans;
}

const int32_t* indices(const Tensor& t, int64_t numel, int64_t limit, const char* name) {
  STD_TORCH_CHECK(t.is_cpu() && t.scalar_type() == ScalarType::Int && t.is_contiguous() &&
                      t.numel() == numel,
                  "fastlbbnn: ", name, " must be a contiguous int32 CPU tensor of ", numel, " elements");
  const auto* p = static_cast<const int32_t*>(t.const_data_ptr());
  // The sign of either number says that an index is outside.
  const uint32_t last = static_cast<uint32_t>(limit - 1);
  uint32_t signs = 0;
  for (int64_t i = 0; i < numel; ++i) signs |= static_cast<uint32_t>(p[i]) | (last - static_cast<uint32_t>(p[i]));
  STD_TORCH_CHECK(signs >> 31 == 0, "fastlbbnn: ", name, " points outside of its layer");
  return p;
}

const int32_t* offsets(const Tensor& t, int64_t count, const char* name) {
  const int64_t n = t.numel();
  STD_TORCH_CHECK(n >= 1 && n <= kMostRows, "fastlbbnn: ", name, " must not be empty");
  const int32_t* p = indices(t, n, count + 1, name);
  STD_TORCH_CHECK(p[0] == 0 && p[n - 1] == count && std::is_sorted(p, p + n), "fastlbbnn: ", name,
                  " must ascend from 0 to ", count);
  return p;
}

Support make_support(const Tensor* t, int64_t count) {
  Support s{t[0].numel() - 1, t[2].numel() - 1, count, nullptr, nullptr, nullptr, nullptr, nullptr};
  s.row_offsets = offsets(t[0], count, "row_offsets");
  s.columns = indices(t[1], count, s.cols, "columns");
  s.col_offsets = offsets(t[2], count, "col_offsets");
  s.rows_of = indices(t[3], count, s.rows, "rows_of");
  s.positions = indices(t[4], count, count, "positions");
  return s;
}

// The observations of all draws, in panels of equal width that no two draws share.
struct Batch {
  int64_t rows, samples, panels_of_sample, width;
  Batch(int64_t rows, int64_t samples) : rows(rows), samples(samples) {
    // As few panels as there can be; the last is filled up with observations that nobody asked for.
    panels_of_sample = (rows + kMostWidth - 1) / kMostWidth;
    width = panels_of_sample > 0 ? padded((rows + panels_of_sample - 1) / panels_of_sample) : 0;
  }
  int64_t panels() const { return panels_of_sample * samples; }
  int64_t floats(int64_t units) const { return volume({panels(), units, width}); }
};

struct FixedLayer {
  Support support;
  Layer parameters;        // kappa, rho and omega as one row of weights
  double included;         // indicators of kept weights, where there are no logits
  uint64_t seed;
  // Where its part of the kept numbers begins: weights, outputs, half_ratio.
  int64_t weights, y, half_ratio;

  bool gated() const { return parameters.weights.gated(); }
};

// A row of weights has no place for the biases of its layer: these are a layer of their own.
Layer as_row(const std::array<OptionalTensor, 5>& p) {
  const int64_t count = p[0]->numel();
  const auto row = [&](const Tensor& t) { return torch::stable::view(row_major(t), {1, count}); };
  return Layer(row(*p[0]), row(*p[1]), p[2] ? OptionalTensor(row(*p[2])) : OptionalTensor(), {}, {}, 1, 1);
}

Posterior part_of(const Posterior& q, int64_t first, int64_t n) {
  return {1, n, 1, 1, q.kappa + first, q.rho + first, q.omega ? q.omega + first : nullptr};
}

// A sink for the weights from `first` on.
class PartSink {
 public:
  PartSink(const GradientSink& s, int64_t first) {
    const auto moved = [&](float* p) { return p ? p + first : nullptr; };
    const auto adam = [&](const AdamTensor* from, AdamTensor* to) -> const AdamTensor* {
      if (!from) return nullptr;
      *to = *from;
      to->param += first;
      to->exp_avg += first;
      to->exp_avg_sq += first;
      return to;
    };
    sink = {moved(s.kappa), moved(s.rho), moved(s.omega), adam(s.adam_kappa, &tensors_[0]),
            adam(s.adam_rho, &tensors_[1]), adam(s.adam_omega, &tensors_[2])};
  }
  GradientSink sink;

 private:
  AdamTensor tensors_[3];
};

// body(part) for parts of the units, of about the same number of weights each; begins are multiples of `unit`.
template <class Body>
void for_units(const int32_t* offsets, int64_t units, int64_t unit, int64_t work, const Body& body) {
  constexpr int64_t kUnitWork = 8;   // of a unit without weights: noise, loads, stores
  const int64_t total = offsets[units] + kUnitWork * units;
  const int64_t threads =
      worth_threads(total, work + 1) ? static_cast<int64_t>(torch::stable::get_num_threads()) : 1;
  const auto begin_of = [&](int64_t part) {
    if (part >= threads) return units;
    const int64_t before = total / threads * part;
    int64_t low = 0, high = units;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      offsets[middle] + kUnitWork * middle < before ? low = middle + 1 : high = middle;
    }
    return low / unit * unit;
  };
  parallel_for(0, threads, 1, [&](int64_t first, int64_t last) { body(begin_of(first), begin_of(last)); });
}

// How far ahead the other order is asked for: each access there waits for memory.
constexpr int64_t kAhead = 24;

struct Pair {
  float mean, var;
};

// The weights [from, to) of the order of rows into that of columns, numbers or pairs of them.
template <class T>
void to_columns(const Support& s, int64_t from, int64_t to, const T* rows, T* columns) {
  const int32_t* positions = s.positions;
  for (int64_t i = from; i < to; ++i) {
    if (i + kAhead < to) __builtin_prefetch(columns + positions[i + kAhead], 1);
    columns[positions[i]] = rows[i];
  }
}

// And back, into dm and dv; numbers have no dv, which is zero.
void to_rows(const Support& s, int64_t from, int64_t to, const Pair* columns, float* dm, float* dv) {
  const int32_t* positions = s.positions;
  for (int64_t i = from; i < to; ++i) {
    if (i + kAhead < to) __builtin_prefetch(columns + positions[i + kAhead]);
    const Pair pair = columns[positions[i]];
    dm[i - from] = pair.mean;
    dv[i - from] = pair.var;
  }
}

void to_rows(const Support& s, int64_t from, int64_t to, const float* columns, float* dw) {
  const int32_t* positions = s.positions;
  for (int64_t i = from; i < to; ++i) {
    if (i + kAhead < to) __builtin_prefetch(columns + positions[i + kAhead]);
    dw[i - from] = columns[positions[i]];
  }
}

// body(begin, end) for parts of the units, where only numbers are moved.
template <class Body>
void for_moves(int64_t units, int64_t observations, const Body& body) {
  constexpr int64_t kMoveWork = 16;
  parallel_for(0, units, worth_threads(units * observations, kMoveWork) ? 64 : units, body);
}

// out [units][width] = the first n rows of x [.., units], transposed, for units [begin, end); what is missing
// is zero.
void to_panel(const float* x, int64_t units, int64_t begin, int64_t end, int64_t n, int64_t width, float* out) {
  constexpr int64_t kTile = 16;   // units in a cache line of x
  for (int64_t k = begin; k < end; k += kTile) {
    for (int64_t u = k; u < std::min(k + kTile, end); ++u) {
      float* to = out + u * width;
      for (int64_t b = 0; b < n; ++b) to[b] = x[b * units + u];
      for (int64_t b = n; b < width; ++b) to[b] = 0.0f;
    }
  }
}

// The other way round, stored or added.
void from_panel(const float* panel, int64_t units, int64_t begin, int64_t end, int64_t n, int64_t width, bool add,
                float* out) {
  constexpr int64_t kTile = 16;
  for (int64_t k = begin; k < end; k += kTile) {
    const int64_t last = std::min(k + kTile, end);
    for (int64_t b = 0; b < n; ++b) {
      float* to = out + b * units;
      for (int64_t u = k; u < last; ++u) to[u] = add ? to[u] + panel[u * width + b] : panel[u * width + b];
    }
  }
}

// Of a whole number of units, added up side by side.
float sum_of(const float* x, int64_t width) {
  float sums[kWidthUnit] = {};
  for (int64_t b = 0; b < width; b += kWidthUnit) {
    for (int64_t i = 0; i < kWidthUnit; ++i) sums[i] += x[b + i];
  }
  float total = 0.0f;
  for (const float sum : sums) total += sum;
  return total;
}

struct Sinks {
  GradientSink weights, bias;
};

class FixedStack {
 public:
  FixedStack(const Tensor& x, const std::vector<Tensor>& parameters, const std::vector<Tensor>& structure,
             const Tensor& seeds, int64_t samples, const std::string& estimator,
             const std::vector<int64_t>& included)
      : estimator_(estimator_of(estimator)), batch_(0, 1) {
    const int64_t layers = static_cast<int64_t>(included.size());
    STD_TORCH_CHECK(layers >= 1 && static_cast<int64_t>(parameters.size()) == layers * kTensors &&
                        static_cast<int64_t>(structure.size()) == layers * kIndices,
                    "fastlbbnn: a stack needs five parameters, five index tensors and a count a layer");
    const std::vector<uint64_t> seed = read_seeds(seeds, layers);
    for (int64_t l = 0; l < layers; ++l) {
      const auto p = layer_parameters(parameters, l);
      const int64_t count = parameters[l * kTensors].numel();
      STD_TORCH_CHECK(count <= kMostRows, "fastlbbnn: ", count, " weights of a layer; expected at most ",
                      kMostRows);
      layers_.push_back({make_support(structure.data() + l * kIndices, count), as_row(p),
                         static_cast<double>(included[l]), seed[l], 0, 0, 0});
      STD_TORCH_CHECK(l == 0 || layers_[l].support.cols == layers_[l - 1].support.rows, "fastlbbnn: layer ", l,
                      " takes ", layers_[l].support.cols, " inputs and layer ", l - 1, " has ",
                      layers_[l - 1].support.rows, " outputs");
      STD_TORCH_CHECK(estimator_ != Estimator::kSampled || !layers_[l].gated(),
                      "fastlbbnn: weights with logits are not drawn here; expected no omega");
      biases_.push_back(bias_layer(p, layers_[l].support.rows));
    }
    const int64_t dim = x.dim();
    check_samples(samples);
    STD_TORCH_CHECK((dim == 2 || (dim == 3 && x.size(0) == samples)) && x.size(dim - 1) == inputs(),
                    "fastlbbnn: x must be [M, K] or [samples, M, K]");
    shared_ = dim == 2;
    batch_ = Batch(x.size(dim - 2), samples);
    x_panels_ = shared_ ? batch_.panels_of_sample : batch_.panels();
    // What is kept: inputs, then by layer weights, half_ratio and hidden outputs.
    kept_ = volume({x_panels_, inputs(), batch_.width});
    for (int64_t l = 0; l < size(); ++l) {
      FixedLayer& layer = layers_[l];
      layer.weights = kept_;
      kept_ += volume({weight_rows(), stride(layer)});
      layer.half_ratio = kept_;
      if (is_local()) kept_ += batch_.floats(layer.support.rows);
      layer.y = kept_;
      if (l + 1 < size()) kept_ += batch_.floats(layer.support.rows);
    }
  }

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

  // y [S, M, N], sums [layers, 5] and what the way back needs.
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x) const {
    const FlushSubnormals flush;
    const Tensor rows = row_major(x);
    check_float(rows, (shared_ ? 1 : batch_.samples) * batch_.rows * inputs(), "x");
    Tensor saved = empty({kept_});
    float* kept = mutable_data(saved);
    for_moves(inputs(), x_panels_ * batch_.width, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < x_panels_; ++p) {
        to_panel(data(rows) + first_row_of(p) * inputs(), inputs(), begin, end, rows_of(p), batch_.width,
                 kept + p * inputs() * batch_.width);
      }
    });
    std::vector<std::vector<RowSums>> sums(size());
    const int64_t outputs = layers_.back().support.rows;
    Tensor last = empty({batch_.floats(outputs)});
    for (int64_t l = 0; l < size(); ++l) {
      const FixedLayer& layer = layers_[l];
      const std::vector<float> bias = prepare(l, kept + layer.weights, &sums[l]);
      float* y = l + 1 < size() ? kept + layer.y : mutable_data(last);
      const float* below = l > 0 ? kept + layers_[l - 1].y : kept;
      for_units(layer.support.row_offsets, layer.support.rows, 4, batch_.panels() * batch_.width * 2,
                [&](int64_t begin, int64_t end) { rows_of_layer(l, begin, end, kept, below, bias, y); });
    }
    Tensor out = empty({batch_.samples, batch_.rows, outputs});
    for_moves(outputs, batch_.panels() * batch_.width, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < batch_.panels(); ++p) {
        from_panel(data(last) + p * outputs * batch_.width, outputs, begin, end, rows_of(p), batch_.width, false,
                   mutable_data(out) + first_row_of(p) * outputs);
      }
    });
    return {out, reduce(sums), saved};
  }

  Tensor backward(const Tensor& dy, const Tensor& dsums, const Tensor& saved, const Tensor& x, bool need_dx,
                  const std::vector<Sinks>& sinks) const {
    const FlushSubnormals flush;
    check_float(saved, kept_, "saved");
    const std::vector<SumGradients> c = read_sum_gradients(dsums, size());
    const Tensor upstream = row_major(dy);
    const int64_t outputs = layers_.back().support.rows;
    check_float(upstream, batch_.samples * batch_.rows * outputs, "dy");
    const float* kept = data(saved);

    int64_t widest = outputs;
    for (int64_t l = 1; l < size(); ++l) widest = std::max(widest, layers_[l].support.cols);
    const bool local = is_local();
    const int64_t room = batch_.floats(widest);
    // The gradients of the outputs of a layer, of its means and its variances; and of the layer below.
    Tensor first = empty({(local ? 2 : 1) * room}), second = empty({size() > 1 ? (local ? 2 : 1) * room : 0});
    Gradients above{mutable_data(first), local ? mutable_data(first) + room : nullptr};
    Gradients below{mutable_data(second), local ? mutable_data(second) + room : nullptr};
    std::vector<float> bias(2 * batch_.samples * outputs, 0.0f);
    top(data(upstream), kept, above, bias.data());
    Tensor dx = empty({0});
    for (int64_t l = size() - 1; l >= 0; --l) {
      const bool input = l == 0 && need_dx;
      Tensor dx_panels = empty({input ? batch_.floats(inputs()) : 0});
      if (input) below = {mutable_data(dx_panels), nullptr};
      const int64_t units = l > 0 ? layers_[l].support.cols : 0;
      std::vector<float> bias_below(2 * batch_.samples * units, 0.0f);
      layer_back(l, kept, above, l > 0 || input ? &below : nullptr, bias_below.data(), c[l], sinks[l].weights);
      bias_back(l, bias.data(), c[l], sinks[l].bias);
      if (input) dx = input_gradient(x, data(dx_panels));
      std::swap(above, below);
      bias.swap(bias_below);
    }
    return dx;
  }

 private:
  struct Gradients {
    float *mean, *var;
  };

  bool is_local() const { return estimator_ == Estimator::kLocal; }
  int64_t inputs() const { return layers_[0].support.cols; }
  int64_t stride(const FixedLayer& layer) const { return padded(layer.support.count); }
  // Rows of weights that are kept: mean and variance, means, or w and eps of every draw.
  int64_t weight_rows() const {
    return is_local() ? 2 : estimator_ == Estimator::kMeans ? 1 : 2 * batch_.samples;
  }
  int64_t sample_of(int64_t panel) const { return panel / batch_.panels_of_sample; }
  // Of a panel: its first observation within its draw, its first among all, and how many it has.
  int64_t row_in_sample(int64_t panel) const { return panel % batch_.panels_of_sample * batch_.width; }
  int64_t first_row_of(int64_t panel) const {
    return sample_of(panel) * batch_.rows + row_in_sample(panel);
  }
  int64_t rows_of(int64_t panel) const {
    return std::max<int64_t>(0, std::min(batch_.width, batch_.rows - row_in_sample(panel)));
  }
  const float* panel_of(const float* activations, int64_t l, int64_t panel) const {
    const int64_t p = l == 0 && shared_ ? panel % batch_.panels_of_sample : panel;
    return activations + p * layers_[l].support.cols * batch_.width;
  }
  int64_t draws() const { return estimator_ == Estimator::kSampled ? batch_.samples : 1; }
  const float* weights_of(const FixedLayer& layer, const float* weights, int64_t panel) const {
    return estimator_ == Estimator::kSampled ? weights + sample_of(panel) * 2 * stride(layer) : weights;
  }

  static Layer bias_layer(const std::array<OptionalTensor, 5>& p, int64_t rows) {
    STD_TORCH_CHECK(p[3].has_value() == p[4].has_value(), "fastlbbnn: bias_kappa and bias_rho go together");
    const int64_t n = p[3] ? rows : 0;
    if (!p[3]) return Layer(empty({0, 0}), empty({0, 0}), {}, {}, {}, 1, 1);
    STD_TORCH_CHECK(p[3]->numel() == n && p[4]->numel() == n, "fastlbbnn: biases of a layer of ", n,
                    " outputs have ", p[3]->numel(), " elements");
    return Layer(torch::stable::view(row_major(*p[3]), {1, n}), torch::stable::view(row_major(*p[4]), {1, n}),
                 {}, {}, {}, 1, 1);
  }

  // The weights to multiply with, their sums, and the biases of all draws: means (or draws), then variances.
  std::vector<float> prepare(int64_t l, float* weights, std::vector<RowSums>* sums) const {
    const FixedLayer& layer = layers_[l];
    const Posterior &q = layer.parameters.weights, &bias = biases_[l].weights;
    const int64_t count = layer.support.count, n = bias.cols, parts = (count + kWeights - 1) / kWeights;
    sums->assign(parts + 2, RowSums{0, 0, 0, 0, 0});
    const bool sampled = estimator_ == Estimator::kSampled;
    // What fills up a row of weights is never used, and should be the same bits twice all the same.
    for (int64_t i = 0; sampled && i < weight_rows(); ++i) {
      std::fill(weights + i * stride(layer) + count, weights + (i + 1) * stride(layer), 0.0f);
    }
    if (!sampled) {
      std::fill(weights + weight_rows() * count, weights + weight_rows() * stride(layer), 0.0f);
    }
    parallel_for(0, parts, worth_threads(count, kWeightWork) ? 1 : parts, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t at = part * kWeights, m = std::min(kWeights, count - at);
        float *mean = thread_scratch(2 * kWeights), *var = mean + kWeights;
        kernels().moments(part_of(q, at, m), 0, 1, mean, var, sums->data() + part);
        if (is_local()) {
          for (int64_t i = 0; i < m; ++i) {
            weights[2 * (at + i)] = mean[i];
            weights[2 * (at + i) + 1] = var[i];
          }
        } else if (!sampled) {
          std::copy_n(mean, m, weights + at);
        }
      }
    });
    for (int64_t s = 0; sampled && s < batch_.samples; ++s) {
      const Draw draw = make_draw(layer.seed, Stream::kWeight, s, 1.0, true);
      float* w = weights + s * 2 * stride(layer);
      for_units(layer.support.row_offsets, layer.support.rows, 1, kWeightWork, [&](int64_t begin, int64_t end) {
        kernels().fixed_draw(layer.support, draw, begin, end, q.kappa, q.rho, w, w + stride(layer));
      });
    }
    if (!layer.gated()) (*sums)[parts + 1].A = layer.included;
    if (n == 0) return {};
    std::vector<float> out((draws() + 1) * n);
    kernels().moments(bias, 0, 1, out.data(), out.data() + draws() * n, &(*sums)[parts]);
    if (sampled) {
      const std::vector<float> eps = bias_noise(l);
      const float* var = out.data() + draws() * n;
      for (int64_t s = 0; s < batch_.samples; ++s) {
        for (int64_t i = 0; i < n; ++i) {
          out[s * n + i] = bias.kappa[i] + std::sqrt(var[i]) * eps[s * padded_cols(n) + i];
        }
      }
    }
    return out;
  }

  // Standard normals of the biases, [samples, padded_cols(n)].
  std::vector<float> bias_noise(int64_t l) const {
    const int64_t n = biases_[l].weights.cols, stride = padded_cols(n);
    std::vector<float> eps(batch_.samples * stride + 64);
    for (int64_t s = 0; s < batch_.samples; ++s) {
      kernels().normals(make_draw(layers_[l].seed, Stream::kBias, s, 1.0, true), 0, 1, n, stride,
                        eps.data() + s * stride);
    }
    return eps;
  }

  void rows_of_layer(int64_t l, int64_t begin, int64_t end, float* kept, const float* below,
                     const std::vector<float>& bias, float* y) const {
    const FixedLayer& layer = layers_[l];
    const int64_t n = layer.support.rows, area = n * batch_.width;
    for (int64_t p = 0; p < batch_.panels(); ++p) {
      const int64_t s = sample_of(p);
      const float* weights = weights_of(layer, kept + layer.weights, p);
      const float* own_bias = bias.empty() ? nullptr : bias.data();
      const FixedForward f{batch_.width, row_in_sample(p), panel_of(below, l, p), weights,
                           own_bias ? own_bias + (draws() > 1 ? s * n : 0) : nullptr,
                           own_bias && is_local() ? own_bias + n : nullptr, y + p * area,
                           is_local() ? kept + layer.half_ratio + p * area : nullptr, l + 1 < size()};
      kernels().fixed_forward(layer.support, make_draw(layer.seed, Stream::kActivation, s, 1.0, true), begin, end,
                              f);
    }
  }

  // The gradients at the outputs, in panels, and of the last biases.
  void top(const float* dy, const float* kept, const Gradients& g, float* bias) const {
    const FixedLayer& layer = layers_.back();
    const int64_t n = layer.support.rows, width = batch_.width;
    for_moves(n, 2 * batch_.panels() * width, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < batch_.panels(); ++p) {
        const int64_t s = sample_of(p), panel = p * n * width;
        to_panel(dy + first_row_of(p) * n, n, begin, end, rows_of(p), width, g.mean + panel);
        for (int64_t i = begin; i < end; ++i) {
          const float *mean = g.mean + panel + i * width, *ratio = kept + layer.half_ratio + panel + i * width;
          bias[s * 2 * n + i] += sum_of(mean, width);
          if (!is_local()) continue;
          float* var = g.var + panel + i * width;
          for (int64_t b = 0; b < width; ++b) var[b] = mean[b] * ratio[b];
          bias[s * 2 * n + n + i] += sum_of(var, width);
        }
      }
    });
  }

  void layer_back(int64_t l, const float* kept, const Gradients& above, const Gradients* below, float* bias_below,
                  const SumGradients& c, const GradientSink& sink) const {
    const FixedLayer& layer = layers_[l];
    const Support& s = layer.support;
    const int64_t room = stride(layer), draws = this->draws();
    const bool local = is_local();
    // Weights and their gradients by columns, in pairs for both products. Each access to the other order waits
    // for memory, so there is one per weight each way. Where columns are walked through once, gradients take the
    // place of the weights that they are computed beside.
    const int64_t size_of_draw = (local ? 2 : 1) * room;
    const bool in_place = batch_.panels() == 1 && batch_.width <= kernels().fixed_width;
    Tensor weights_tensor = empty({below || in_place ? draws * size_of_draw : 0});
    Tensor gradients_tensor = empty({in_place ? 0 : draws * size_of_draw});
    float* by_columns = mutable_data(weights_tensor);
    float* dw = in_place ? by_columns : mutable_data(gradients_tensor);
    const int64_t a_thread = worth_threads(s.count, kWeightWork) ? kWeights : s.count;
    if (below) {
      parallel_for(0, s.count, a_thread, [&](int64_t from, int64_t to) {
        for (int64_t d = 0; d < draws; ++d) {
          const float* weights = kept + layer.weights + d * 2 * room;
          float* columns = by_columns + d * size_of_draw;
          if (local) {
            to_columns(s, from, to, reinterpret_cast<const Pair*>(weights), reinterpret_cast<Pair*>(columns));
          } else {
            to_columns(s, from, to, weights, columns);
          }
        }
      });
    }
    const float* x = l > 0 ? kept + layers_[l - 1].y : kept;
    for_units(s.col_offsets, s.cols, 1, batch_.panels() * batch_.width * 4, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < batch_.panels(); ++p) {
        const int64_t in = p * s.cols * batch_.width, out = p * s.rows * batch_.width;
        const int64_t draw = draws > 1 ? sample_of(p) : 0;
        FixedBackward b{};
        b.width = batch_.width;
        b.x = panel_of(x, l, p);
        b.weights = by_columns + draw * size_of_draw;
        b.dw = dw + draw * size_of_draw;
        b.add = p > 0 && (draws == 1 || p % batch_.panels_of_sample > 0);
        b.dmean = above.mean + out;
        b.relu = l > 0;
        if (local) b.dvar = above.var + out;
        if (below) b.dx = below->mean + in;
        if (below && l > 0) {
          b.db = bias_below + sample_of(p) * 2 * s.cols;
          b.db_var = b.db + s.cols;
          if (local) {
            b.half_ratio = kept + layers_[l - 1].half_ratio + in;
            b.dx_var = below->var + in;
          }
        }
        kernels().fixed_backward(s, begin, end, b);
      }
    });
    // Without observations nothing was written.
    if (batch_.panels() == 0) std::memset(dw, 0, draws * size_of_draw * sizeof(float));
    const Posterior& q = layer.parameters.weights;
    const int64_t parts = (s.count + kWeights - 1) / kWeights;
    const float* eps = kept + layer.weights + room;
    parallel_for(0, parts, worth_threads(s.count, kWeightWork) ? 1 : parts, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t at = part * kWeights, n = std::min(kWeights, s.count - at);
        const PartSink to(sink, at);
        if (estimator_ == Estimator::kSampled) {
          drawn_weights_back(s, part_of(q, at, n), at, dw, eps + at, c, to.sink);
          continue;
        }
        float *dm = thread_scratch(2 * kWeights), *dv = dm + kWeights;
        if (local) {
          to_rows(s, at, at + n, reinterpret_cast<const Pair*>(dw), dm, dv);
        } else {
          to_rows(s, at, at + n, dw, dm);
          std::fill_n(dv, n, 0.0f);   // means have no variance
        }
        kernels().moments_backward(part_of(q, at, n), 0, 1, {dm, dv, 0}, c, to.sink);
      }
    });
  }

  // The gradients of the weights from `at` on, of all draws.
  void drawn_weights_back(const Support& s, const Posterior& q, int64_t at, const float* dw, const float* eps,
                          const SumGradients& c, const GradientSink& sink) const {
    const int64_t n = padded(q.cols), samples = batch_.samples, room = padded(s.count);
    float* both = thread_scratch(volume({2, samples, n}));
    for (int64_t d = 0; d < samples; ++d) {
      to_rows(s, at, at + q.cols, dw + d * room, both + d * n);
      std::copy_n(eps + d * 2 * room, q.cols, both + (samples + d) * n);
    }
    kernels().drawn_backward(q, samples, both, both + samples * n, n, c, sink);
  }

  // bias [samples][2][n]: gradients of a layer's means and variances, summed over observations.
  void bias_back(int64_t l, const float* bias, const SumGradients& c, const GradientSink& sink) const {
    const int64_t n = biases_[l].weights.cols, rows = layers_[l].support.rows;
    if (n == 0) return;
    if (estimator_ != Estimator::kSampled) {
      std::vector<float> total(2 * n, 0.0f);
      for (int64_t s = 0; s < batch_.samples; ++s) {
        for (int64_t i = 0; i < 2 * n; ++i) total[i] += bias[s * 2 * rows + i];
      }
      if (!is_local()) std::fill(total.begin() + n, total.end(), 0.0f);
      kernels().moments_backward(biases_[l].weights, 0, 1, {total.data(), total.data() + n, 0}, c, sink);
      return;
    }
    const std::vector<float> eps = bias_noise(l);
    const int64_t stride = padded_cols(n);
    std::vector<float> db(batch_.samples * stride + 64);
    for (int64_t s = 0; s < batch_.samples; ++s) {
      std::copy_n(bias + s * 2 * rows, n, db.data() + s * stride);
    }
    kernels().drawn_backward(biases_[l].weights, batch_.samples, db.data(), eps.data(), stride, c, sink);
  }

  // dx like x: where all draws share it, summed over them.
  Tensor input_gradient(const Tensor& x, const float* panels) const {
    Tensor dx = torch::stable::empty_like(row_major(x));
    for_moves(inputs(), batch_.panels() * batch_.width, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < batch_.panels(); ++p) {
        const int64_t row = shared_ ? row_in_sample(p) : first_row_of(p);
        from_panel(panels + p * inputs() * batch_.width, inputs(), begin, end, rows_of(p), batch_.width,
                   shared_ && sample_of(p) > 0, mutable_data(dx) + row * inputs());
      }
    });
    return dx;
  }

  Tensor reduce(const std::vector<std::vector<RowSums>>& sums) const {
    std::vector<LayerSums> all;
    for (int64_t l = 0; l < size(); ++l) {
      // A bias that is not finite is the layer's fault as well.
      const bool bias_finite = biases_[l].finite();
      STD_TORCH_CHECK(bias_finite, "fastlbbnn: parameters are not finite");
      all.push_back({&layers_[l].parameters, &sums[l]});
    }
    return reduce_sums(all);
  }

  Estimator estimator_;
  Batch batch_;
  std::vector<FixedLayer> layers_;
  std::vector<Layer> biases_;   // one row of weights, or none
  bool shared_ = true;          // x, by all draws
  int64_t x_panels_ = 0, kept_ = 0;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> fixed_mlp_fwd(Tensor x, std::vector<Tensor> parameters,
                                                 std::vector<Tensor> structure, Tensor seeds, int64_t samples,
                                                 std::string estimator, std::vector<int64_t> included) {
  return FixedStack(x, parameters, structure, seeds, samples, estimator, included).forward(x);
}

std::vector<Tensor> fixed_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                                  std::vector<Tensor> structure, Tensor saved, Tensor seeds, int64_t samples,
                                  std::string estimator, std::vector<int64_t> included, bool need_dx) {
  const FixedStack stack(x, parameters, structure, seeds, samples, estimator, included);
  std::vector<Tensor> grads{empty({0})};
  std::vector<Sinks> sinks;
  for (int64_t l = 0; l < stack.size(); ++l) {
    const Tensor* p = parameters.data() + l * kTensors;
    const ParameterGradients g(p[0], p[1], p[2], p[3], p[4]);
    sinks.push_back({g.weight_sink(), g.bias_sink()});
    grads.insert(grads.end(), {g.kappa, g.rho, g.omega, g.bias_kappa, g.bias_rho});
  }
  grads[0] = stack.backward(dy, dsums, saved, x, need_dx, sinks);
  return grads;
}

Tensor fixed_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                          std::vector<Tensor> structure, Tensor saved, Tensor seeds, int64_t samples,
                          std::string estimator, std::vector<int64_t> included, bool need_dx,
                          std::vector<Tensor> exp_avg, std::vector<Tensor> exp_avg_sq,
                          std::vector<double> hyper) {
  const FixedStack stack(x, parameters, structure, seeds, samples, estimator, included);
  std::vector<LayerAdam> adams = layer_adams(parameters, exp_avg, exp_avg_sq, hyper);
  std::vector<Sinks> sinks;
  for (const LayerAdam& adam : adams) sinks.push_back({adam.weight_sink(), adam.bias_sink()});
  const Tensor dx = stack.backward(dy, dsums, saved, x, need_dx, sinks);
  for (LayerAdam& adam : adams) adam.write_back();
  return dx;
}

}  // namespace fastlbbnn
