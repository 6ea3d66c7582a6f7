// Small helpers between torch's stable tensors and the kernels' pointers.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace fastlbbnn {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline Tensor empty(std::vector<int64_t> sizes) {
  return torch::stable::empty(sizes, ScalarType::Float);
}

inline float* mutable_data(const Tensor& t) { return static_cast<float*>(t.mutable_data_ptr()); }
inline const float* data(const Tensor& t) { return static_cast<const float*>(t.const_data_ptr()); }
inline const float* data(const OptionalTensor& t) { return t ? data(*t) : nullptr; }

// The tensor itself where it is row-major already, else a copy.
inline Tensor row_major(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

// The product of sizes, for memory that is about to be asked for. Throws where no memory holds as much.
int64_t volume(std::initializer_list<int64_t> sizes);

// Floats that nobody has written to.
using Floats = std::unique_ptr<float[]>;
inline Floats floats(int64_t n) { return Floats(new float[n]); }

// Python has checked arguments and says what is wrong in words; these are what keeps a direct call of
// an operator from reading past a tensor.
inline void check_float(const Tensor& t, int64_t numel, const char* name) {
  STD_TORCH_CHECK(t.is_cpu() && t.scalar_type() == ScalarType::Float && t.is_contiguous() &&
                      t.numel() == numel,
                  "fastlbbnn: ", name, " must be a contiguous float32 CPU tensor of ", numel,
                  " elements");
}

// What a stack keeps for its backward pass. Small parts lie in one tensor, which costs a call less than one for
// each; of large ones only the largest should be memory that is new in every call, so they have their own.
// (Mirrored in fastlbbnn/ops/library.py.)
class Parts {
 public:
  void add(int64_t floats) {
    sizes_.push_back(floats);
    together_ = volume({together_ + padded(floats)});
  }
  // New memory, with zeros between parts: the same call twice gives the same bits.
  std::vector<Tensor> make() const {
    std::vector<Tensor> out;
    if (!in_one()) {
      for (const int64_t size : sizes_) out.push_back(empty({size}));
      return out;
    }
    out.push_back(empty({together_}));
    float* part = mutable_data(out[0]);
    for (const int64_t size : sizes_) {
      std::fill(part + size, part + padded(size), 0.0f);
      part += padded(size);
    }
    return out;
  }
  // Where the parts begin, in what `make` gave; checks that it is that.
  std::vector<const float*> find(const std::vector<Tensor>& made) const {
    const size_t count = in_one() ? 1 : sizes_.size();
    STD_TORCH_CHECK(made.size() == count, "fastlbbnn: there are ", made.size(), " saved tensors; expected ", count);
    std::vector<const float*> out;
    if (in_one()) {
      check_float(made[0], together_, "saved");
      const float* part = data(made[0]);
      for (const int64_t size : sizes_) {
        out.push_back(part);
        part += padded(size);
      }
    }
    for (size_t i = 0; i < sizes_.size() && !in_one(); ++i) {
      check_float(made[i], sizes_[i], "saved");
      out.push_back(data(made[i]));
    }
    return out;
  }

 private:
  static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
  bool in_one() const { return together_ <= int64_t{1} << 18; }
  std::vector<int64_t> sizes_;
  int64_t together_ = 0;
};

// Rows and columns of a matrix, and samples: what the noise counts in 32 bits.
constexpr int64_t kMostRows = INT32_MAX;
void check_samples(int64_t samples);

// Seeds of `count` layers.
std::vector<uint64_t> read_seeds(const Tensor& seeds, int64_t count);

// out [a.rows, b.cols] with row stride `out_row` = a b: small ones on this thread, others by the BLAS that
// torch was built with.
void matmul(float* out, int64_t out_row, const Matrix& a, const Matrix& b);

// The parameters of a layer as the operators receive them, checked and row-major.
struct Layer {
  Posterior weights;
  Posterior bias;       // one row of N, never gated; rows == 0 without a bias
  std::vector<Tensor> owned;   // what the pointers above point into
  Layer(const Tensor& kappa, const Tensor& rho, const OptionalTensor& omega,
        const OptionalTensor& bias_kappa, const OptionalTensor& bias_rho, int64_t block_rows,
        int64_t block_cols);
  bool has_bias() const { return bias.rows > 0; }
  // One for each row that has weights, and one for the bias.
  int64_t sum_rows() const { return (weights.cols > 0 ? weights.rows : 0) + bias.rows; }
  bool finite() const;   // all parameters are
};

// The parameters of a stack in one list, five tensors a layer: kappa, rho, omega, bias_kappa, bias_rho; empty
// tensors stand for those that a layer does not have.
constexpr int64_t kTensors = 5;
int64_t count_layers(const std::vector<Tensor>& parameters);
std::array<OptionalTensor, 5> layer_parameters(const std::vector<Tensor>& parameters, int64_t l);

// Inputs [M, K], shared by all samples, or [S, M, K].
struct Inputs {
  Tensor owned;
  const float* x;
  int64_t rows, cols, sample_stride;
  bool shared;   // by all samples
  Inputs(const Tensor& x, const Layer& layer, int64_t samples);
  Matrix of_sample(int64_t s) const { return {x + s * sample_stride, rows, cols, cols, 1}; }
};

// Adds up the rows' sums of each layer in their order, so that threads make no difference, and writes
// them to a tensor [layers, 5]. Throws if some parameter is not finite. (The sums of finite parameters may
// be beyond float32, as in the reference.)
struct LayerSums {
  const Layer* layer;
  const std::vector<RowSums>* rows;
};
Tensor reduce_sums(const std::vector<LayerSums>& layers);

// From a tensor [layers, 5].
std::vector<SumGradients> read_sum_gradients(const Tensor& dsums, int64_t layers);

// Rows of a weight matrix that are worked on together, so that a panel of weights or of their
// gradients is still in the L2 cache when the next step reads it.
class Panels {
 public:
  Panels(const Posterior& q, int64_t batch);
  int64_t count() const { return count_; }
  int64_t begin(int64_t panel) const { return panel * size_; }
  int64_t end(int64_t panel) const { return begin(panel + 1) < rows_ ? begin(panel + 1) : rows_; }
  int64_t size() const { return size_; }

 private:
  int64_t rows_, size_, count_;
};

// Scratch memory of a thread, kept between calls so that its pages are.
float* thread_scratch(int64_t floats);

Draw make_draw(uint64_t seed, Stream stream, int64_t sample, double temperature, bool hard);

// New row-major tensors for the gradients of a layer's parameters; empty for those it does not have.
struct ParameterGradients {
  Tensor kappa, rho, omega, bias_kappa, bias_rho;
  ParameterGradients(const Tensor& kappa, const Tensor& rho, const OptionalTensor& omega,
                     const OptionalTensor& bias_kappa, const OptionalTensor& bias_rho);
  GradientSink weight_sink() const;
  GradientSink bias_sink() const;
};

// Adam's state for the five parameter tensors of a layer, in the order above; an empty state tensor
// leaves its parameter alone. `hyper` has kAdamNumbers numbers a tensor: lr, beta1, beta2, eps, and
// the step that is being taken, from 1.
constexpr int kAdamNumbers = 5;
void check_adam(int64_t layers, const std::vector<Tensor>& exp_avg,
                const std::vector<Tensor>& exp_avg_sq, const std::vector<double>& hyper);
class LayerAdam {
 public:
  LayerAdam(const std::array<OptionalTensor, 5>& params, const Tensor* exp_avg,
            const Tensor* exp_avg_sq, const double* hyper);
  GradientSink weight_sink() const;
  GradientSink bias_sink() const;
  // To be called after the step: tensors that are not row-major were updated in a copy.
  void write_back();

 private:
  const AdamTensor* at(int i) const { return tensors_[i] ? &*tensors_[i] : nullptr; }
  float* in_place(const Tensor& t, int64_t numel, const char* name);

  struct Copied {
    Tensor original, copy;
  };
  std::array<std::optional<AdamTensor>, 5> tensors_;
  std::vector<Copied> copies_;
};

// Of every layer of a stack.
std::vector<LayerAdam> layer_adams(const std::vector<Tensor>& parameters, const std::vector<Tensor>& exp_avg,
                                   const std::vector<Tensor>& exp_avg_sq, const std::vector<double>& hyper);

}  // namespace fastlbbnn
