// The CPU kernels as plain C++: raw pointers in, raw pointers out, no torch.
//
// Each kernel works on a range of rows of a weight matrix [N, K] and is built three times, for
// AVX-512, AVX2 and any processor; `kernels()` is the table that fits this machine. A range must
// start and end on a block of indicators. Rows are independent, so callers may split them between
// threads as they like: results do not depend on the split.
#pragma once

#include <cstdint>

#include "../common/philox.h"
#include "fixed_support.h"

namespace fastlbbnn {

// Row stride of sampled weights and stored noise: whole groups of noise, so that generators never
// need a tail.
constexpr int64_t kRowUnit = 32;
inline int64_t padded_cols(int64_t cols) { return (cols + kRowUnit - 1) / kRowUnit * kRowUnit; }

// The variational parameters of one weight matrix.
struct Posterior {
  int64_t rows, cols;               // N, K
  int64_t block_rows, block_cols;   // size of an indicator block; the last blocks may be cut off
  const float* kappa;               // [N, K] means
  const float* rho;                 // [N, K] tau = softplus(rho)
  const float* omega;               // [grid_rows, grid_cols] logits; nullptr: no indicators

  bool gated() const { return omega != nullptr; }
  bool elementwise() const { return block_rows == 1 && block_cols == 1; }
  int64_t grid_cols() const { return (cols + block_cols - 1) / block_cols; }
  int64_t grid_rows() const { return (rows + block_rows - 1) / block_rows; }
};

// Which draw: the noise is a function of these and of the weight's row and column.
struct Draw {
  PhiloxKey key;
  Stream stream;
  uint32_t sample;
  bool hard;               // gates are 0 or 1, not relaxed
  float inv_temperature;   // 1/delta of the relaxed gates
};

// One row of the five sums, weights and blocks apart because they have different rows.
// H is the negative entropy of the indicators.
struct RowSums {
  double H, A, A_w, T, S;
};

// Where a draw is kept. A row of `saved` holds the sampled weights and then their eps, each padded
// to `stride` columns: w at [row][0][col], eps at [row][1][col].
struct Sampled {
  float* saved;
  int64_t stride;
  float* gates;   // [grid_rows, grid_cols], for blocks larger than (1, 1); else nullptr
};

// Gradient of the loss with respect to the five sums.
struct SumGradients {
  float H, A, A_w, T, S;
};

// One step of Adam on one tensor, with what does not change inside a step worked out already:
//   m += (1-beta1) (g - m);  v = beta2 v + (1-beta2) g^2;  p -= step_size m / (sqrt(v) inv_bias + eps)
struct AdamTensor {
  float *param, *exp_avg, *exp_avg_sq;
  float one_minus_beta1, beta2, one_minus_beta2, step_size, inv_bias_correction2_sqrt, eps;
};

// What becomes of the parameter gradients: written out, or used for a step at once.
struct GradientSink {
  float *kappa, *rho, *omega;            // write here, nullptr: not wanted
  const AdamTensor *adam_kappa, *adam_rho, *adam_omega;   // all nullptr: only write
};

// The likelihood's part of the gradient: d loss / d w for each of `samples` draws.
struct WeightGradients {
  int64_t samples;
  const float* dw;        // [samples][rows of the panel][cols], or nullptr: none (the KL alone)
  int64_t dw_sample_stride;
  int64_t dw_first_row;   // the row of the matrix that dw starts at
  const float* saved;     // as in Sampled, of the first draw
  int64_t saved_sample_stride;
  const float* gates;     // likewise; same stride between draws
};

// Local reparametrisation: what the gradient of the two weight-sized products gives.
struct MomentGradients {
  const float* dmean;     // [rows of the panel][cols], d loss / d (alpha kappa)
  const float* dvar;      // likewise, d loss / d (alpha (tau^2 + (1-alpha) kappa^2))
  int64_t first_row;
};

// A matrix in memory: element (i, j) at data[i * row + j * col].
struct Matrix {
  const float* data;
  int64_t rows, cols, row, col;
  Matrix t() const { return {data, cols, rows, col, row}; }
};

struct KernelTable {
  const char* name;
  // w = g (kappa + tau eps) for rows [begin, end). `sums` (one RowSums a row) may be nullptr;
  // without `keep_eps` the eps half of `saved` is left alone.
  void (*sample)(const Posterior&, const Draw&, int64_t begin, int64_t end, const Sampled&,
                 bool keep_eps, RowSums* sums);
  // The five sums alone.
  void (*sums)(const Posterior&, int64_t begin, int64_t end, RowSums* sums);
  // The gradients of all parameters from d loss / d w and the gradient of the five sums.
  void (*backward)(const Posterior&, const Draw&, int64_t begin, int64_t end,
                   const WeightGradients&, const SumGradients&, const GradientSink&);
  // mean = alpha kappa and var = alpha (tau^2 + (1-alpha) kappa^2), [N, K] each; for elementwise
  // indicators or none.
  void (*moments)(const Posterior&, int64_t begin, int64_t end, float* mean, float* var,
                  RowSums* sums);
  void (*moments_backward)(const Posterior&, int64_t begin, int64_t end, const MomentGradients&,
                           const SumGradients&, const GradientSink&);
  // Local reparametrisation of activations [M, N], rows [begin, end):
  //   y = mean + bias_mean + eps std,  std = sqrt(max(var + bias_var, kMinVariance)),
  // and half_ratio = eps / (2 std) = dy / dvar (0 where the variance was raised).
  void (*perturb)(const Draw&, int64_t begin, int64_t end, int64_t cols, const float* mean,
                  const float* var, const float* bias_mean, const float* bias_var, float* y,
                  float* half_ratio);
  // Standard normals [rows, cols] of a stream, row stride `stride` >= padded_cols(cols).
  void (*normals)(const Draw&, int64_t begin, int64_t end, int64_t cols, int64_t stride,
                  float* out);
  // Uniforms [rows, cols] of gates that belong to weights block_rows, block_cols apart, and their
  // logits; row stride padded_cols(cols).
  void (*gate_noise)(const Draw&, int64_t begin, int64_t end, int64_t cols, int64_t block_rows,
                     int64_t block_cols, float* uniform, float* logistic);
  // For tests: one function of vecmath.h, elementwise.
  void (*math)(int function, const float* x, float* out, int64_t n);
  // out [a.rows, b.cols] with row stride `out_row` = a b, on this thread; `packed` holds
  // kProductScratch floats. nullptr: none, ask BLAS.
  void (*product)(float* out, int64_t out_row, const Matrix& a, const Matrix& b, float* packed);
  // The cross-entropy of logits [rows, classes] and targets, summed, and its gradient.
  double (*cross_entropy)(const float* logits, const int64_t* target, int64_t rows, int64_t classes,
                          float* gradient);
  // Layers of a fixed structure, one panel of the batch: rows [begin, end), begin a multiple of 4; and
  // columns [begin, end) of the way back.
  void (*fixed_forward)(const Support&, const Draw&, int64_t begin, int64_t end, const FixedForward&);
  void (*fixed_backward)(const Support&, int64_t begin, int64_t end, const FixedBackward&);
  // Observations that a column is walked through for at once; wider panels take several walks.
  int64_t fixed_width;
  // w = mean + tau eps of the kept weights of rows [begin, end).
  void (*fixed_draw)(const Support&, const Draw&, int64_t begin, int64_t end, const float* mean,
                     const float* rho, float* w, float* eps);
  // The gradients of one row of weights without indicators from those of its draws.
  void (*drawn_backward)(const Posterior&, int64_t samples, const float* dw, const float* eps, int64_t stride,
                         const SumGradients&, const GradientSink&);
};

const KernelTable& kernels();

// Rows of b that a product takes at a time, and the room that it packs them into.
constexpr int64_t kProductDepth = 256;
constexpr int64_t kProductScratch = kProductDepth * 64;

// A variance of exactly zero (an input of zeros and no bias) has no finite slope; raised to this,
// its standard deviation of 1e-15 disappears in any float32 activation.
constexpr float kMinVariance = 1e-30f;

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace fastlbbnn
