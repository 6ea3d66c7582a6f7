// What the kernels of a fixed structure work on: see fixed_rows.h.
#pragma once

#include <cstdint>

namespace fastlbbnn {

// Observations of a panel: a multiple of kWidthUnit, at most kMostWidth. Mirrored in
// fastlbbnn/ops/fixed_mlp.py.
constexpr int64_t kWidthUnit = 16, kMostWidth = 112;

// Where the kept weights of a layer [rows, cols] stand, in both orders. The weights themselves are stored
// by rows; positions[i] says where the i-th of them is by columns.
struct Support {
  int64_t rows, cols, count;
  const int32_t *row_offsets, *columns;            // [rows + 1], [count]
  const int32_t *col_offsets, *rows_of;      // [cols + 1], [count]
  const int32_t* positions;                    // [count]
};

// One panel through one layer.
struct FixedForward {
  int64_t width, first_row;           // observations, and which is the first
  const float* x;                     // [cols][width]
  const float* weights;               // [count][2], mean and variance, or [count] without noise
  const float *bias_mean, *bias_var;  // [rows] or nullptr
  float *y, *half_ratio;              // [rows][width]; half_ratio = eps / (2 std), or nullptr: no noise
  bool relu;
};

// And back.
struct FixedBackward {
  int64_t width;
  const float* x;                     // [cols][width]
  // In the order of columns, as they are walked through: [count][2], or [count] where there is no dvar.
  const float* weights;               // for dx alone
  float* dw;                          // may be the weights' own memory for one walk
  bool add;                           // to what dw holds
  const float *dmean, *dvar;          // [rows][width]; no dvar: one product
  // The gradient of the outputs of the layer below, through its ReLU and its noise; nullptr: not wanted.
  bool relu;
  const float* half_ratio;            // [cols][width], the layer's below
  float *dx, *dx_var;                 // [cols][width]; dx_var with half_ratio
  float *db, *db_var;                 // [cols], the sums of both over observations, added to
};

}  // namespace fastlbbnn
