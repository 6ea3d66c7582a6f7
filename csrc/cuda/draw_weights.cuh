// Sampled weights: mean + scale eps, with the noise of the trained network's weight.
#pragma once

#include <cstdint>

#include "device.cuh"
#include "elements.cuh"
#include "noise.cuh"

namespace fastlbbnn {
namespace cuda {

struct DrawProblem {
  const int32_t* row_offsets;  // [rows + 1]; null: the one row of a bias
  ColumnIndices columns;       // [weights]; data null: weight i is in column i
  const float *mean, *scale;   // [weights]
  const int32_t *row_index;    // [rows], in the trained network
  const int32_t *col_index;    // [columns], likewise
  const int32_t* place;        // [weights], where each goes; null: weight i to i
  void* values;                // [samples, stride]
  int64_t stride;
  uint64_t seed;
  int32_t rows, weights;
  int32_t groups;              // thread blocks of one sample
  uint32_t stream;
  ElementCode element;
};

constexpr int kDrawThreads = 256;

// The row of weight i: the last whose offset is not above it.
__device__ __forceinline__ int32_t row_of(const int32_t* row_offsets, int32_t rows, int32_t i) {
  int32_t low = 0, high = rows;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (row_offsets[middle] <= i) low = middle; else high = middle;
  }
  return low;
}

// A weight a thread.
__global__ void __launch_bounds__(kDrawThreads) draw_weights_kernel(const DrawProblem p) {
  const int64_t at = static_cast<int64_t>(blockIdx.x % p.groups) * kDrawThreads + threadIdx.x;
  if (at >= p.weights) return;
  const int32_t i = static_cast<int32_t>(at);
  const uint32_t sample = blockIdx.x / p.groups;
  const uint32_t row = p.row_offsets == nullptr
                           ? 0u : static_cast<uint32_t>(p.row_index[row_of(p.row_offsets, p.rows, i)]);
  const int32_t column = p.columns.data == nullptr ? i : p.columns[i];
  const float eps = normal_at(p.seed, p.stream, sample, row, static_cast<uint32_t>(p.col_index[column]));
  const float value = fmaf(p.scale[i], eps, p.mean[i]);
  const int64_t to = sample * p.stride + (p.place == nullptr ? i : p.place[i]);
  switch (p.element) {
    case ElementCode::kFloat16: static_cast<uint16_t*>(p.values)[to] = Float16::from_float(value); break;
    case ElementCode::kBFloat16: static_cast<uint16_t*>(p.values)[to] = BFloat16::from_float(value); break;
    default: static_cast<float*>(p.values)[to] = value; break;
  }
}

}  // namespace cuda
}  // namespace fastlbbnn
