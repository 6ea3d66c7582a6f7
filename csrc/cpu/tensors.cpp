#include "tensors.h"

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

}  // namespace

void matmul(float* out, int64_t out_row, const Matrix& a, const Matrix& b) {
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
  STD_TORCH_CHECK(bias_kappa.has_value() == bias_rho.has_value(),
                  "fastlbbnn: bias_kappa and bias_rho go together");
  const auto checked = [&](const Tensor& t, int64_t numel, const char* name) {
    owned.push_back(row_major(t));
    check_float(owned.back(), numel, name);
    return data(owned.back());
  };
  const int64_t n = kappa.size(0), k = kappa.size(1);
  weights = {n, k, block_rows, block_cols, nullptr, nullptr, nullptr};
  weights.kappa = checked(kappa, n * k, "kappa");
  weights.rho = checked(rho, n * k, "rho");
  if (omega) weights.omega = checked(*omega, weights.grid_rows() * weights.grid_cols(), "omega");
  bias = {bias_kappa ? 1 : 0, n, 1, 1, nullptr, nullptr, nullptr};
  if (bias_kappa) {
    bias.kappa = checked(*bias_kappa, n, "bias_kappa");
    bias.rho = checked(*bias_rho, n, "bias_rho");
  }
}

Inputs::Inputs(const Tensor& x, const Layer& layer, int64_t samples) {
  const int64_t dim = x.dim();
  STD_TORCH_CHECK((dim == 2 || (dim == 3 && x.size(0) == samples)) && samples >= 1 &&
                      x.size(dim - 1) == layer.weights.cols,
                  "fastlbbnn: x must be [M, K] or [samples, M, K]");
  owned = row_major(x);
  check_float(owned, x.numel(), "x");
  this->x = data(owned);
  rows = x.size(dim - 2);
  cols = layer.weights.cols;
  sample_stride = dim == 3 ? rows * cols : 0;
}

std::vector<uint64_t> read_seeds(const Tensor& seeds, int64_t count) {
  STD_TORCH_CHECK(seeds.is_cpu() && seeds.scalar_type() == ScalarType::Long &&
                      seeds.numel() == count && seeds.is_contiguous(),
                  "fastlbbnn: seed must be an int64 CPU tensor of ", count, " elements");
  const auto* p = static_cast<const uint64_t*>(seeds.const_data_ptr());
  return std::vector<uint64_t>(p, p + count);
}

Tensor reduce_sums(const std::vector<std::vector<RowSums>>& layers) {
  Tensor out = empty({static_cast<int64_t>(layers.size()), 5});
  float* p = mutable_data(out);
  for (const auto& rows : layers) {
    double total[5] = {0, 0, 0, 0, 0};
    for (const RowSums& r : rows) {
      const double row[5] = {r.H, r.A, r.A_w, r.T, r.S};
      for (int i = 0; i < 5; ++i) total[i] += row[i];
    }
    for (int i = 0; i < 5; ++i) {
      STD_TORCH_CHECK(std::isfinite(total[i]), "fastlbbnn: parameters are not finite");
      *p++ = static_cast<float>(total[i]);
    }
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
  // Small matrices are not worth a second thread. A large batch makes BLAS repack the inputs for
  // every panel, at a cost that grows with it, so panels grow too.
  const int64_t threads =
      q.rows * q.cols < (1 << 14) ? 1 : static_cast<int64_t>(torch::stable::get_num_threads());
  const int64_t most = batch <= 256 ? 128 : 1024;
  const int64_t a_thread = (q.rows + threads - 1) / threads;
  const int64_t pieces = (a_thread + most - 1) / most;
  int64_t size = pieces > 0 ? (a_thread + pieces - 1) / pieces : 1;
  size_ = (size + q.block_rows - 1) / q.block_rows * q.block_rows;
  count_ = (rows_ + size_ - 1) / size_;
}

float* thread_scratch(int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t capacity = 0;
  if (floats > capacity) {
    capacity = (floats + 1023) / 1024 * 1024;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, capacity * sizeof(float))));
    STD_TORCH_CHECK(memory != nullptr, "fastlbbnn: out of memory for scratch space");
  }
  return memory.get();
}

Draw make_draw(uint64_t seed, Stream stream, int64_t sample, double temperature, bool hard) {
  STD_TORCH_CHECK(hard || temperature > 0.0, "fastlbbnn: temperature must be positive");
  return {PhiloxKey(seed), stream, static_cast<uint32_t>(sample), hard,
          hard ? 0.0f : static_cast<float>(1.0 / temperature)};
}

namespace {

Tensor empty_like_or_none(const OptionalTensor& t) {
  return t ? torch::stable::empty_like(*t) : empty({0});
}

float* data_or_null(const Tensor& t) { return t.numel() > 0 ? mutable_data(t) : nullptr; }

}  // namespace

ParameterGradients::ParameterGradients(const Tensor& kappa, const Tensor& rho,
                                       const OptionalTensor& omega,
                                       const OptionalTensor& bias_kappa,
                                       const OptionalTensor& bias_rho)
    : kappa(torch::stable::empty_like(kappa)), rho(torch::stable::empty_like(rho)),
      omega(empty_like_or_none(omega)), bias_kappa(empty_like_or_none(bias_kappa)),
      bias_rho(empty_like_or_none(bias_rho)) {}

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

LayerAdam::LayerAdam(const std::array<OptionalTensor, 5>& params, const Tensor* exp_avg,
                     const Tensor* exp_avg_sq, const double* hyper) {
  for (int i = 0; i < 5; ++i) {
    if (!params[i] || exp_avg[i].numel() == 0) continue;
    const int64_t numel = params[i]->numel();
    check_float(*params[i], numel, "a parameter that is updated in place");
    check_float(exp_avg[i], numel, "exp_avg");
    check_float(exp_avg_sq[i], numel, "exp_avg_sq");
    const double* h = hyper + i * kAdamNumbers;
    const double lr = h[0], beta1 = h[1], beta2 = h[2], step = h[4];
    tensors_[i] = AdamTensor{mutable_data(*params[i]),
                             mutable_data(exp_avg[i]),
                             mutable_data(exp_avg_sq[i]),
                             static_cast<float>(1.0 - beta1),
                             static_cast<float>(beta2),
                             static_cast<float>(1.0 - beta2),
                             static_cast<float>(lr / (1.0 - std::pow(beta1, step))),
                             static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step))),
                             static_cast<float>(h[3])};
  }
}

GradientSink LayerAdam::weight_sink() const {
  return {nullptr, nullptr, nullptr, at(0), at(1), at(2)};
}

GradientSink LayerAdam::bias_sink() const {
  return {nullptr, nullptr, nullptr, at(3), at(4), nullptr};
}

}  // namespace fastlbbnn
