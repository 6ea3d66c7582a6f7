// The operators on CPU, with the signatures of their schemas in fastlbbnn/ops/.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace fastlbbnn {

// y [S, M, N], sums [5], and with `save` the draws, [S, N * 2 * padded K (+ gates of blocks)].
std::tuple<Tensor, Tensor, Tensor> gated_linear_fwd(
    Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, Tensor seed, int64_t samples, int64_t block_rows, int64_t block_cols,
    double temperature, bool hard, bool save);

// Gradients of x and of the five parameter tensors; empty where there is none.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_linear_bwd(
    Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega,
    OptionalTensor bias_kappa, OptionalTensor bias_rho, Tensor saved, Tensor seed,
    int64_t samples, int64_t block_rows, int64_t block_cols, double temperature, bool hard,
    bool need_dx);

// The same, with the parameter gradients spent on a step of Adam; returns dx.
Tensor gated_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho,
                             OptionalTensor omega, OptionalTensor bias_kappa,
                             OptionalTensor bias_rho, Tensor saved, Tensor seed,
                             int64_t samples, int64_t block_rows, int64_t block_cols,
                             double temperature, bool hard, bool need_dx,
                             std::vector<Tensor> exp_avg, std::vector<Tensor> exp_avg_sq,
                             std::vector<double> hyper);

// A stack of such layers with ReLU between them. Parameters: five tensors a layer, empty for those it
// does not have; blocks: two ints a layer. Returns y, sums [layers, 5] and with `save` the draws of
// all layers and the hidden activations.
std::tuple<Tensor, Tensor, std::vector<Tensor>> gated_mlp_fwd(
    Tensor x, std::vector<Tensor> parameters, Tensor seeds, int64_t samples,
    std::vector<int64_t> blocks, std::vector<double> temperatures, bool hard, bool save);

// dx and the gradients of all parameters, in their order.
std::vector<Tensor> gated_mlp_bwd(Tensor dy, Tensor dsums, Tensor x,
                                  std::vector<Tensor> parameters, std::vector<Tensor> saved,
                                  Tensor seeds, int64_t samples, std::vector<int64_t> blocks,
                                  std::vector<double> temperatures, bool hard, bool need_dx);

Tensor gated_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                          std::vector<Tensor> saved, Tensor seeds, int64_t samples,
                          std::vector<int64_t> blocks, std::vector<double> temperatures, bool hard,
                          bool need_dx, std::vector<Tensor> exp_avg,
                          std::vector<Tensor> exp_avg_sq, std::vector<double> hyper);

// y [S, M, N], sums [5], moments [2, N, K] (mean and variance weights), half_ratio [S, M, N].
std::tuple<Tensor, Tensor, Tensor, Tensor> local_linear_fwd(
    Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, Tensor seed, int64_t samples);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> local_linear_bwd(
    Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho, OptionalTensor omega,
    OptionalTensor bias_kappa, OptionalTensor bias_rho, Tensor moments, Tensor half_ratio,
    int64_t samples, bool need_dx);

Tensor local_linear_bwd_adam(Tensor dy, Tensor dsums, Tensor x, Tensor kappa, Tensor rho,
                             OptionalTensor omega, OptionalTensor bias_kappa,
                             OptionalTensor bias_rho, Tensor moments, Tensor half_ratio,
                             int64_t samples, bool need_dx, std::vector<Tensor> exp_avg,
                             std::vector<Tensor> exp_avg_sq, std::vector<double> hyper);

// A stack of layers of a fixed structure with ReLU between them. Parameters: five tensors a layer, kappa, rho
// and omega [kept weights]; structure: five int32 tensors a layer (Support). Returns y [S, M, N], sums
// [layers, 5] and what the way back needs.
std::tuple<Tensor, Tensor, Tensor> fixed_mlp_fwd(Tensor x, std::vector<Tensor> parameters,
                                                 std::vector<Tensor> structure, Tensor seeds, int64_t samples,
                                                 std::string estimator, std::vector<int64_t> included);

std::vector<Tensor> fixed_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                                  std::vector<Tensor> structure, Tensor saved, Tensor seeds, int64_t samples,
                                  std::string estimator, std::vector<int64_t> included, bool need_dx);

Tensor fixed_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                          std::vector<Tensor> structure, Tensor saved, Tensor seeds, int64_t samples,
                          std::string estimator, std::vector<int64_t> included, bool need_dx,
                           std::vector<Tensor> exp_avg, std::vector<Tensor> exp_avg_sq,
                           std::vector<double> hyper);

// A stack of such layers with ReLU between them, parameters as above. Returns y, sums [layers, 5] and what the
// backward pass needs, in one tensor.
std::tuple<Tensor, Tensor, std::vector<Tensor>> local_mlp_fwd(Tensor x, std::vector<Tensor> parameters,
                                                              Tensor seeds, int64_t samples);

std::vector<Tensor> local_mlp_bwd(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                                  std::vector<Tensor> saved, int64_t samples, bool need_dx);

Tensor local_mlp_bwd_adam(Tensor dy, Tensor dsums, Tensor x, std::vector<Tensor> parameters,
                          std::vector<Tensor> saved, int64_t samples, bool need_dx,
                          std::vector<Tensor> exp_avg, std::vector<Tensor> exp_avg_sq,
                          std::vector<double> hyper);

// The five sums [5] of a layer, and their gradients.
Tensor kl_sums_fwd(Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
                   OptionalTensor bias_rho, int64_t block_rows, int64_t block_cols);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> kl_sums_bwd(
    Tensor dsums, Tensor kappa, Tensor rho, OptionalTensor omega, OptionalTensor bias_kappa,
    OptionalTensor bias_rho, int64_t block_rows, int64_t block_cols);

// Cross-entropy of logits [rows, classes] and classes [rows], summed, and its gradient.
std::tuple<Tensor, Tensor> cross_entropy_fwd(Tensor logits, Tensor target);

// The noise itself, for checking it against the reference: kind "normal" [rows, cols] of `stream`;
// "uniform" and "logistic" of the gates of blocks.
Tensor noise(Tensor seed, std::string kind, int64_t stream, int64_t sample, int64_t rows,
             int64_t cols, int64_t block_rows, int64_t block_cols);

// One function of common/vecmath.h, by its number in kernel_table.h.
Tensor vecmath(Tensor x, int64_t function);

// The instruction set in use: "avx512", "avx2" or "portable".
std::string cpu_capability();

}  // namespace fastlbbnn
