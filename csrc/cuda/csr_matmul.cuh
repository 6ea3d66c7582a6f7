// Unstructured sparse times dense: y = relu(W x + b) with W in compressed rows.
//
// Activations are feature-major, x [inputs, batch] and y [rows, batch], so that one weight multiplies a
// contiguous run of the batch. A row is summed in the order of its weights, by the same lanes, whatever
// else the grid does: the same call gives the same bits.
#pragma once

#include <cstdint>

#include "activate.cuh"
#include "device.cuh"

namespace fastlbbnn {
namespace cuda {

template <class Index>
struct CsrProblem {
  const int32_t* row_offsets;  // [rows + 1]
  const Index* columns;        // [weights]
  const float* values;         // [weights]
  const float* bias;           // [rows], or null
  const float* x;              // [inputs, batch]
  float* y;                    // [rows, batch]
  int64_t batch;
  int32_t rows;
  int32_t row_groups;  // thread blocks that cover all rows for one tile of the batch
  bool relu;
};

constexpr int kCsrThreads = 128;
constexpr int kCsrBlocks = 8;  // on a multiprocessor at once: up to 64 registers a thread, so none spill

// Columns of the batch that one thread keeps, loaded and stored at once.
template <int kVector>
struct Pack;

template <>
struct Pack<1> {
  float v[1];
  __device__ __forceinline__ void load(const float* p) { v[0] = *p; }
  __device__ __forceinline__ void store(float* p) const { *p = v[0]; }
};

template <>
struct Pack<4> {
  float v[4];
  __device__ __forceinline__ void load(const float* p) {
    const float4 q = *reinterpret_cast<const float4*>(p);
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
  }
  __device__ __forceinline__ void store(float* p) const {
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
  }
};

// One row a group of kLanes lanes, kVector columns of the batch a lane. The group reads kLanes weights
// at a time, coalesced, and hands them round one by one.
template <class Index, int kVector, int kLanes>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks) csr_matmul_kernel(const CsrProblem<Index> p) {
  constexpr int kGroups = kCsrThreads / kLanes;
  constexpr int kAhead = 4;  // loads in flight before the first is used
  const int lane = threadIdx.x % kLanes;
  const int group = threadIdx.x / kLanes;
  const int row = static_cast<int>(blockIdx.x % p.row_groups) * kGroups + group;
  if (row >= p.rows) return;  // the whole group leaves

  const int64_t tile = blockIdx.x / p.row_groups;
  const int64_t column = (tile * kLanes + lane) * kVector;
  const bool inside = column < p.batch;
  // Lanes beyond the batch load the last columns again: no branch in the loop.
  const float* x = p.x + (inside ? column : p.batch - kVector);
  const unsigned group_mask =
      kLanes == 32 ? 0xffffffffu : ((1u << (kLanes % 32)) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);

  Pack<kVector> sum;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.v[i] = 0.0f;

  const int32_t end = p.row_offsets[row + 1];
  for (int32_t first = p.row_offsets[row]; first < end; first += kLanes) {
    const int count = end - first < kLanes ? end - first : kLanes;
    int32_t my_column = 0;
    float my_value = 0.0f;
    if (lane < count) {
      my_column = static_cast<int32_t>(p.columns[first + lane]);
      my_value = p.values[first + lane];
    }
    int j = 0;
    // Unrolled any further, ptxas keeps more addresses than it has registers for.
#pragma unroll 1
    for (; j + kAhead <= count; j += kAhead) {
      Pack<kVector> ahead[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t input = __shfl_sync(group_mask, my_column, j + u, kLanes);
        ahead[u].load(x + input * p.batch);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const float value = __shfl_sync(group_mask, my_value, j + u, kLanes);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum.v[i] = fmaf(value, ahead[u].v[i], sum.v[i]);
      }
    }
#pragma unroll 1
    for (; j < count; ++j) {
      const int64_t input = __shfl_sync(group_mask, my_column, j, kLanes);
      const float value = __shfl_sync(group_mask, my_value, j, kLanes);
      Pack<kVector> one;
      one.load(x + input * p.batch);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.v[i] = fmaf(value, one.v[i], sum.v[i]);
    }
  }

  if (!inside) return;
  const float bias = p.bias != nullptr ? p.bias[row] : 0.0f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.v[i] = activate(sum.v[i] + bias, p.relu);
  sum.store(p.y + static_cast<int64_t>(row) * p.batch + column);
}

// For a handful of columns: one row a warp, the lanes share out the weights of the row and add up at
// the end. kCsrNarrow columns of the batch at a time.
constexpr int kCsrNarrow = 4;

template <class Index>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks) csr_matmul_narrow_kernel(const CsrProblem<Index> p) {
  constexpr int kWarps = kCsrThreads / 32;
  const int lane = threadIdx.x % 32;
  const int row = static_cast<int>(blockIdx.x % p.row_groups) * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;  // the whole warp leaves

  const int64_t column = static_cast<int64_t>(blockIdx.x / p.row_groups) * kCsrNarrow;
  const int width = p.batch - column < kCsrNarrow ? static_cast<int>(p.batch - column) : kCsrNarrow;
  const float* x = p.x + column;

  float sum[kCsrNarrow] = {0.0f, 0.0f, 0.0f, 0.0f};
  const int32_t end = p.row_offsets[row + 1];
  for (int32_t i = p.row_offsets[row] + lane; i < end; i += 32) {
    const float value = p.values[i];
    const float* activations = x + static_cast<int64_t>(p.columns[i]) * p.batch;
#pragma unroll
    for (int c = 0; c < kCsrNarrow; ++c) {
      if (c < width) sum[c] = fmaf(value, activations[c], sum[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kCsrNarrow; ++c) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], distance);
    }
  }

  const float bias = p.bias != nullptr ? p.bias[row] : 0.0f;
#pragma unroll
  for (int c = 0; c < kCsrNarrow; ++c) {
    if (lane == c && c < width) {
      p.y[static_cast<int64_t>(row) * p.batch + column + c] = activate(sum[c] + bias, p.relu);
    }
  }
}

}  // namespace cuda
}  // namespace fastlbbnn
