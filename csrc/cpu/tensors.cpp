#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

namespace fastlbbnn {
namespace {

Tensor view(const Matrix& m) {
  const std::array<int64_t, 2> sizes{m.rows, m.cols}, strides{m.row, m.col};
  return torch::stable::from_blob(const_cast<float*>(m.data), sizes, strides,
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU),
                                  ScalarType::Float);
}

// Memory of a thread that grows and is kept. One for each purpose: they are in use together.
class Scratch {
 public:
  float* of(int64_t floats) {
    if (floats > capacity_) {
      // First the memory and then its size: if there is none, the next call must not believe in it.
      memory_.reset();
      capacity_ = 0;
      const int64_t size = (volume({floats}) + 1023) / 1024 * 1024;
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, size * sizeof(float))));
      STD_TORCH_CHECK(memory_ != nullptr, "fastlbbnn: out of memory for ", floats, " floats of scratch");
      capacity_ = size;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> memory_;
  int64_t capacity_ = 0;
};

// Multiplications of a product that is done here: 50 us or so. BLAS would be no faster with one thread, and
// for so little others are not worth waking.
constexpr int64_t kSmallProduct = int64_t{1} << 22;

bool small(const Matrix& a, const Matrix& b) {
  // With fewer rows, packing b costs more than it saves.
  return a.rows >= 8 && a.rows * b.cols <= kSmallProduct / std::max<int64_t>(b.rows, 1);
}

}  // namespace

int64_t volume(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  bool fits = true;
  for (const int64_t size : sizes) {
    if (size == 0) return 0;
    fits = fits && size > 0 && !__builtin_mul_overflow(product, size, &product);
  }
  STD_TORCH_CHECK(fits && product <= (int64_t{1} << 60),
                  "fastlbbnn: these sizes need more memory than there can be: samples, batch or layers "
                  "are too large");
  return product;
}

void check_samples(int64_t samples) {
  STD_TORCH_CHECK(samples >= 1 && samples <= kMostRows, "fastlbbnn: samples is ", samples,
                  "; expected 1 to ", kMostRows);
}

void matmul(float* out, int64_t out_row, const Matrix& a, const Matrix& b) {
  if (kernels().product && small(a, b)) {
    thread_local Scratch packed;
    kernels().product(out, out_row, a, b, packed.of(kProductScratch));
    return;
  }
  const Tensor c = view({out, a.rows, b.cols, out_row, 1}), left = view(a), right = view(b);
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(left), from(right), from(c)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);   // takes back the reference that was returned
}

Layer::Layer(const Tensor& kappa, const Tensor& rho, const OptionalTensor& omega,
             const OptionalTensor& bias_kappa, const OptionalTensor& bias_rho, int64_t block_rows,
             int64_t block_cols) {
  STD_TORCH_CHECK(kappa.dim() == 2 && block_rows >= 1 && block_cols >= 1,
                  "fastlbbnn: kappa must be a matrix and blocks at least (1, 1)");
  STD_TORCH_CHECK(kappa.size(0) <= kMostRows && kappa.size(1) <= kMostRows, "fastlbbnn: kappa is [",
                  kappa.size(0), ", ", kappa.size(1), "]; expected at most ", kMostRows,
                  " rows and columns");
  STD_TORCH_CHECK(bias_kappa.has_value() == bias_rho.has_value(),
                  "fastlbbnn: bias_kappa and bias_rho go together");
  owned.reserve(kTensors);
  const auto checked = [&](const Tensor& t, int64_t numel, const char* name) {
    // Before a copy is made: of an expanded tensor it could be of any size.
    STD_TORCH_CHECK(t.numel() == numel, "fastlbbnn: ", name, " has ", t.numel(), " elements; expected ",
                    numel);
    owned.push_back(row_major(t));
    check_float(owned.back(), numel, name);
    return data(owned.back());
  };
  const int64_t n = kappa.size(0), k = kappa.size(1);
  // Larger blocks than the matrix are as large as it; no sum of sizes below can overflow then.
  weights = {n, k, std::min(block_rows, std::max<int64_t>(n, 1)),
             std::min(block_cols, std::max<int64_t>(k, 1)), nullptr, nullptr, nullptr};
  weights.kappa = checked(kappa, n * k, "kappa");
  weights.rho = checked(rho, n * k, "rho");
  if (omega) weights.omega = checked(*omega, weights.grid_rows() * weights.grid_cols(), "omega");
  bias = {bias_kappa ? 1 : 0, n, 1, 1, nullptr, nullptr, nullptr};
  if (bias_kappa) {
    bias.kappa = checked(*bias_kappa, n, "bias_kappa");
    bias.rho = checked(*bias_rho, n, "bias_rho");
  }
}

bool Layer::finite() const {
  return std::all_of(owned.begin(), owned.end(), [](const Tensor& t) {
    const float* p = data(t);
    return std::all_of(p, p + t.numel(), [](float v) { return std::isfinite(v); });
  });
}

int64_t count_layers(const std::vector<Tensor>& parameters) {
  const auto count = static_cast<int64_t>(parameters.size());
  STD_TORCH_CHECK(count >= kTensors && count % kTensors == 0, "fastlbbnn: an MLP needs five tensors a layer; got ",
                  count);
  return count / kTensors;
}

std::array<OptionalTensor, 5> layer_parameters(const std::vector<Tensor>& parameters, int64_t l) {
  const auto present = [](const Tensor& t) { return t.numel() > 0 ? OptionalTensor(t) : OptionalTensor(); };
  const Tensor* p = parameters.data() + l * kTensors;
  return {p[0], p[1], present(p[2]), present(p[3]), present(p[4])};
}

Inputs::Inputs(const Tensor& x, const Layer& layer, int64_t samples) {
  const int64_t dim = x.dim();
  check_samples(samples);
  STD_TORCH_CHECK((dim == 2 || (dim == 3 && x.size(0) == samples)) &&
                      x.size(dim - 1) == layer.weights.cols,
                  "fastlbbnn: x must be [M, K] or [samples, M, K]");
  owned = row_major(x);
  check_float(owned, x.numel(), "x");
  this->x = data(owned);
  rows = x.size(dim - 2);
  cols = layer.weights.cols;
  shared = dim == 2;
  sample_stride = shared ? 0 : volume({rows, cols});
}

std::vector<uint64_t> read_seeds(const Tensor& seeds, int64_t count) {
  STD_TORCH_CHECK(seeds.is_cpu() && seeds.scalar_type() == ScalarType::Long &&
                      seeds.numel() == count && seeds.is_contiguous(),
                  "fastlbbnn: seed must be an int64 CPU tensor of ", count, " elements");
  const auto* p = static_cast<const uint64_t*>(seeds.const_data_ptr());
  return std::vector<uint64_t>(p, p + count);
}

Tensor reduce_sums(const std::vector<LayerSums>& layers) {
  Tensor out = empty({static_cast<int64_t>(layers.size()), 5});
  float* p = mutable_data(out);
  for (const LayerSums& sums : layers) {
    double total[5] = {0, 0, 0, 0, 0};
    for (const RowSums& r : *sums.rows) {
      const double row[5] = {r.H, r.A, r.A_w, r.T, r.S};
      for (int i = 0; i < 5; ++i) total[i] += row[i];
    }
    const bool finite = std::all_of(total, total + 5, [](double v) { return std::isfinite(v); });
    STD_TORCH_CHECK(finite || sums.layer->finite(), "fastlbbnn: parameters are not finite");
    for (int i = 0; i < 5; ++i) *p++ = static_cast<float>(total[i]);
  }
  return out;
}

std::vector<SumGradients> read_sum_gradients(const Tensor& dsums, int64_t layers) {
  const Tensor contiguous = row_major(dsums);
  check_float(contiguous, layers * 5, "dsums");
  std::vector<SumGradients> out;
  const float* p = data(contiguous);
  for (int64_t l = 0; l < layers; ++l, p += 5) out.push_back({p[0], p[1], p[2], p[3], p[4]});
  return out;
}

Panels::Panels(const Posterior& q, int64_t batch) : rows_(q.rows) {
  const int64_t threads = worth_threads(q.rows * q.cols, kWeightWork + batch)
                              ? static_cast<int64_t>(torch::stable::get_num_threads())
                              : 1;
  // A large batch makes BLAS repack the inputs for every panel, at a cost that grows with it, so panels
  // grow too.
  const int64_t most = batch <= 256 ? 128 : 1024;
  const int64_t a_thread = (q.rows + threads - 1) / threads;
  const int64_t pieces = (a_thread + most - 1) / most;
  int64_t size = pieces > 0 ? (a_thread + pieces - 1) / pieces : 1;
  size_ = (size + q.block_rows - 1) / q.block_rows * q.block_rows;
  count_ = q.cols > 0 ? (rows_ + size_ - 1) / size_ : 0;   // without columns nothing is to be done
}

float* thread_scratch(int64_t floats) {
  thread_local Scratch scratch;
  return scratch.of(floats);
}

Draw make_draw(uint64_t seed, Stream stream, int64_t sample, double temperature, bool hard) {
  STD_TORCH_CHECK(hard || (temperature > 0.0 && std::isfinite(static_cast<float>(1.0 / temperature))),
                  "fastlbbnn: temperature is ", temperature, "; expected a positive float32");
  return {PhiloxKey(seed), stream, static_cast<uint32_t>(sample), hard,
          hard ? 0.0f : static_cast<float>(1.0 / temperature)};
}

namespace {

// Row-major, whatever the strides of the parameter are: that is how kernels write.
Tensor gradient_of(const OptionalTensor& t) {
  if (!t) return empty({0});
  const auto sizes = t->sizes();
  return empty(std::vector<int64_t>(sizes.begin(), sizes.end()));
}

float* data_or_null(const Tensor& t) { return t.numel() > 0 ? mutable_data(t) : nullptr; }

}  // namespace

ParameterGradients::ParameterGradients(const Tensor& kappa, const Tensor& rho,
                                       const OptionalTensor& omega,
                                       const OptionalTensor& bias_kappa,
                                       const OptionalTensor& bias_rho)
    : kappa(gradient_of(kappa)), rho(gradient_of(rho)), omega(gradient_of(omega)),
      bias_kappa(gradient_of(bias_kappa)), bias_rho(gradient_of(bias_rho)) {}

GradientSink ParameterGradients::weight_sink() const {
  return {data_or_null(kappa), data_or_null(rho), data_or_null(omega), nullptr, nullptr, nullptr};
}

GradientSink ParameterGradients::bias_sink() const {
  return {data_or_null(bias_kappa), data_or_null(bias_rho), nullptr, nullptr, nullptr, nullptr};
}

void check_adam(int64_t layers, const std::vector<Tensor>& exp_avg,
                const std::vector<Tensor>& exp_avg_sq, const std::vector<double>& hyper) {
  const size_t tensors = layers * 5;
  STD_TORCH_CHECK(exp_avg.size() == tensors && exp_avg_sq.size() == tensors &&
                      hyper.size() == tensors * kAdamNumbers,
                  "fastlbbnn: Adam needs the state and numbers of five tensors a layer");
}

float* LayerAdam::in_place(const Tensor& t, int64_t numel, const char* name) {
  const Tensor row = row_major(t);
  check_float(row, numel, name);
  if (!t.is_contiguous()) copies_.push_back({t, row});
  return mutable_data(row);
}

void LayerAdam::write_back() {
  for (Copied& c : copies_) torch::stable::copy_(c.original, c.copy);
}

LayerAdam::LayerAdam(const std::array<OptionalTensor, 5>& params, const Tensor* exp_avg,
                     const Tensor* exp_avg_sq, const double* hyper) {
  for (int i = 0; i < 5; ++i) {
    if (!params[i] || exp_avg[i].numel() == 0) continue;
    const int64_t numel = params[i]->numel();
    const double* h = hyper + i * kAdamNumbers;
    const double lr = h[0], beta1 = h[1], beta2 = h[2], eps = h[3], step = h[4];
    STD_TORCH_CHECK(std::isfinite(lr) && beta1 >= 0.0 && beta1 < 1.0 && beta2 >= 0.0 && beta2 < 1.0 &&
                        eps >= 0.0 && step >= 1.0,
                    "fastlbbnn: Adam's numbers are lr ", lr, ", betas ", beta1, " and ", beta2, ", eps ",
                    eps, " and step ", step, "; expected a finite lr, betas in [0, 1), eps >= 0 and a "
                    "step >= 1");
    tensors_[i] = AdamTensor{in_place(*params[i], numel, "a parameter that is updated in place"),
                             in_place(exp_avg[i], numel, "exp_avg"),
                             in_place(exp_avg_sq[i], numel, "exp_avg_sq"),
                             static_cast<float>(1.0 - beta1),
                             static_cast<float>(beta2),
                             static_cast<float>(1.0 - beta2),
                             static_cast<float>(lr / (1.0 - std::pow(beta1, step))),
                             static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step))),
                             static_cast<float>(eps)};
  }
}

GradientSink LayerAdam::weight_sink() const {
  return {nullptr, nullptr, nullptr, at(0), at(1), at(2)};
}

GradientSink LayerAdam::bias_sink() const {
  return {nullptr, nullptr, nullptr, at(3), at(4), nullptr};
}

std::vector<LayerAdam> layer_adams(const std::vector<Tensor>& parameters, const std::vector<Tensor>& exp_avg,
                                   const std::vector<Tensor>& exp_avg_sq, const std::vector<double>& hyper) {
  const int64_t layers = count_layers(parameters);
  check_adam(layers, exp_avg, exp_avg_sq, hyper);
  std::vector<LayerAdam> adams;
  adams.reserve(layers);
  for (int64_t l = 0; l < layers; ++l) {
    adams.emplace_back(layer_parameters(parameters, l), exp_avg.data() + l * kTensors,
                       exp_avg_sq.data() + l * kTensors, hyper.data() + l * kTensors * kAdamNumbers);
  }
  return adams;
}

}  // namespace fastlbbnn
