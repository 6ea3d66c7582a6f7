// Unstructured sparse times dense: y = relu(W x + b) with W in compressed rows, for one or more samples
// of W and b.
//
// Activations are feature-major, x [inputs, batch] and y [rows, batch], so that one weight multiplies a
// contiguous run of the batch; sums are float32. A row is summed in the order of its weights, by the same
// lanes, whatever else the grid does: the same call gives the same bits.
#pragma once

#include <cstdint>

#include "activate.cuh"
#include "device.cuh"
#include "elements.cuh"

namespace fastlbbnn {
namespace cuda {

struct CsrProblem {
  const int32_t* row_offsets;  // [rows + 1]
  ColumnIndices columns;       // [weights]
  const void* values;          // [samples, weights]
  const float* bias;           // [samples, rows], or null
  const void* x;               // [inputs, batch], of each sample unless they share it
  void* y;                     // [samples, rows, batch]: as x, or float32 where float_output
  int64_t batch;
  int64_t weights;
  int64_t x_stride;    // from sample to sample: inputs * batch, or 0 where they share it
  int32_t rows;
  int32_t row_groups;  // thread blocks that cover all rows for one tile of the batch
  int32_t tiles;       // of the batch
  bool float_output;
  bool relu;
};

constexpr int kCsrThreads = 128;
constexpr int kCsrBlocks = 8;  // on a multiprocessor at once: up to 64 registers a thread, so none spill

// What a thread block is to compute.
struct CsrTask {
  int32_t row_group;
  int64_t tile, sample;
  __device__ __forceinline__ explicit CsrTask(const CsrProblem& p)
      : row_group(static_cast<int32_t>(blockIdx.x % p.row_groups)),
        tile(blockIdx.x / p.row_groups % p.tiles),
        sample(blockIdx.x / p.row_groups / p.tiles) {}
};

// One row a group of kLanes lanes, kVector columns of the batch a lane. The group reads kLanes weights
// at a time, coalesced, and hands them round one by one.
template <class Element, int kVector, int kLanes>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks) csr_matmul_kernel(const CsrProblem p) {
  using Storage = typename Element::Storage;
  constexpr int kGroups = kCsrThreads / kLanes;
  constexpr int kAhead = 4;  // loads in flight before the first is used
  const int lane = threadIdx.x % kLanes;
  const int group = threadIdx.x / kLanes;
  const CsrTask task(p);
  const int row = task.row_group * kGroups + group;
  if (row >= p.rows) return;  // the whole group leaves

  const int64_t column = (task.tile * kLanes + lane) * kVector;
  const bool inside = column < p.batch;
  // Lanes beyond the batch load the last columns again: no branch in the loop.
  const Storage* x = static_cast<const Storage*>(p.x) + task.sample * p.x_stride +
                     (inside ? column : p.batch - kVector);
  const Storage* values = static_cast<const Storage*>(p.values) + task.sample * p.weights;
  const unsigned group_mask =
      kLanes == 32 ? 0xffffffffu : ((1u << (kLanes % 32)) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);

  float sum[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum[i] = 0.0f;

  const int32_t end = p.row_offsets[row + 1];
  for (int32_t first = p.row_offsets[row]; first < end; first += kLanes) {
    const int count = end - first < kLanes ? end - first : kLanes;
    int32_t my_column = 0;
    float my_value = 0.0f;
    if (lane < count) {
      my_column = p.columns[first + lane];
      my_value = Element::to_float(values[first + lane]);
    }
    int j = 0;
    // Unrolled any further, ptxas keeps more addresses than it has registers for.
#pragma unroll 1
    for (; j + kAhead <= count; j += kAhead) {
      Pack<Element, kVector> ahead[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t input = __shfl_sync(group_mask, my_column, j + u, kLanes);
        ahead[u].load(x + input * p.batch);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const float value = __shfl_sync(group_mask, my_value, j + u, kLanes);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] = fmaf(value, ahead[u].at(i), sum[i]);
      }
    }
#pragma unroll 1
    for (; j < count; ++j) {
      const int64_t input = __shfl_sync(group_mask, my_column, j, kLanes);
      const float value = __shfl_sync(group_mask, my_value, j, kLanes);
      Pack<Element, kVector> one;
      one.load(x + input * p.batch);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] = fmaf(value, one.at(i), sum[i]);
    }
  }

  if (!inside) return;
  const int64_t output = task.sample * p.rows + row;
  const float bias = p.bias != nullptr ? p.bias[output] : 0.0f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum[i] = activate(sum[i] + bias, p.relu);
  store_pack<Element, kVector>(p.y, output * p.batch + column, p.float_output, sum);
}

// For a handful of columns: one row a warp, the lanes share out the weights of the row and add up at
// the end. kCsrNarrow columns of the batch at a time.
constexpr int kCsrNarrow = 4;

template <class Element>
__global__ void __launch_bounds__(kCsrThreads, kCsrBlocks) csr_matmul_narrow_kernel(const CsrProblem p) {
  using Storage = typename Element::Storage;
  constexpr int kWarps = kCsrThreads / 32;
  const int lane = threadIdx.x % 32;
  const CsrTask task(p);
  const int row = task.row_group * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;  // the whole warp leaves

  const int64_t column = task.tile * kCsrNarrow;
  const int width = p.batch - column < kCsrNarrow ? static_cast<int>(p.batch - column) : kCsrNarrow;
  const Storage* x = static_cast<const Storage*>(p.x) + task.sample * p.x_stride + column;
  const Storage* values = static_cast<const Storage*>(p.values) + task.sample * p.weights;

  float sum[kCsrNarrow] = {0.0f, 0.0f, 0.0f, 0.0f};
  const int32_t end = p.row_offsets[row + 1];
  for (int32_t i = p.row_offsets[row] + lane; i < end; i += 32) {
    const float value = Element::to_float(values[i]);
    const Storage* activations = x + static_cast<int64_t>(p.columns[i]) * p.batch;
#pragma unroll
    for (int c = 0; c < kCsrNarrow; ++c) {
      if (c < width) sum[c] = fmaf(value, Element::to_float(activations[c]), sum[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kCsrNarrow; ++c) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], distance);
    }
  }

  const int64_t output = task.sample * p.rows + row;
  const float bias = p.bias != nullptr ? p.bias[output] : 0.0f;
#pragma unroll
  for (int c = 0; c < kCsrNarrow; ++c) {
    if (lane == c && c < width) {
      const float y[1] = {activate(sum[c] + bias, p.relu)};
      store_pack<Element, 1>(p.y, output * p.batch + column + c, p.float_output, y);
    }
  }
}

}  // namespace cuda
}  // namespace fastlbbnn
