// Block-sparse times dense on tensor cores: y = relu(W x + b) with W in rows of blocks, for one or
// more samples of W and b.
//
// Activations are feature-major, x [inputs, batch] and y [rows, batch], 16-bit; sums are float32. A
// tensor core multiplies [16, 16] by [16, 8]. The product is turned round, y' = x' W', so that the 16
// rows are columns of the batch and the 8 columns are outputs: blocks of 8, 16 and 32 rows by 8, 16 and 32
// columns all fit without waste. The inputs of kDepth / kBlockCols blocks of a block row are one stage of a pipeline: while one
// stage is multiplied the next two are copied to shared memory.
#pragma once

#include <cstdint>

#include "activate.cuh"
#include "device.cuh"

namespace fastlbbnn {
namespace cuda {

struct BlockProblem {
  const int32_t* row_offsets;  // [block rows + 1]
  const int32_t* columns;      // [blocks]
  const uint16_t* values;      // [samples, blocks, kBlockRows, kBlockCols]
  const float* bias;           // [samples, rows], or null
  const uint16_t* x;           // [inputs, batch], of each sample unless they share it
  void* y;                     // [samples, rows, batch]: 16-bit, or float32 where float_output
  int64_t rows;
  int64_t inputs;
  int64_t batch;
  int64_t value_stride;        // from sample to sample
  int64_t x_stride;            // likewise: inputs * batch, or 0 where they share it
  int32_t block_rows;
  int32_t tiles;               // of the batch
  bool whole_vectors;  // 16-byte access to x and y: the batch is a multiple of 8, x and y are aligned
  bool float_output;
  bool relu;
};

// kTile: columns of the batch of one thread block.
template <int kBlockRows_, int kBlockCols_, int kTile_>
struct BlockShape {
  static constexpr int kBlockRows = kBlockRows_;
  static constexpr int kBlockCols = kBlockCols_;
  static constexpr int kTile = kTile_;
  static constexpr int kDepth = 32;  // inputs a stage
  static constexpr int kStages = 3;
  static constexpr int kSteps = kDepth / 16;           // tensor-core steps a stage
  static constexpr int kStageBlocks = kDepth / kBlockCols;
  static constexpr int kWarps = kTile >= 128 ? 4 : kTile / 16;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpTiles = kTile / kWarps / 16;  // runs of 16 columns of the batch a warp
  static constexpr int kOutputTiles = kBlockRows / 8;     // runs of 8 outputs

  // Rows in shared memory are padded so that the eight rows of one 8x8 matrix lie in different banks.
  static constexpr int kInputStride = kTile + 8;
  static constexpr int kValueStride = kBlockCols == 8 ? 8 : kBlockCols + 8;
  static constexpr int kInputElements = kDepth * kInputStride;
  static constexpr int kValueElements = kStageBlocks * kBlockRows * kValueStride;
  static constexpr int kStageElements = kInputElements + kValueElements;
  // The sums go through the same memory when the stages are done.
  static constexpr int kSumStride = kTile + 4;
  static constexpr int kStageBytes = kStages * kStageElements * 2;
  static constexpr int kSumBytes = kBlockRows * kSumStride * 4;
  static constexpr int kSharedBytes = kStageBytes > kSumBytes ? kStageBytes : kSumBytes;
  static_assert(kSharedBytes <= 48 * 1024, "beyond what a kernel gets without asking");
  static_assert(kStageElements % 8 == 0 && kInputElements % 8 == 0, "16-byte access");
};

// Starts the copy of one stage: the inputs of its blocks, and their weights. Blocks at or after `end`,
// inputs at or after p.inputs and columns at or after p.batch become zeros.
template <class Shape>
__device__ __forceinline__ void start_stage(const BlockProblem& p, int64_t sample, uint16_t* stage,
                                            int32_t first, int32_t end, int64_t tile_start) {
  const uint16_t* const x = p.x + sample * p.x_stride;
  constexpr int kRowChunks = Shape::kTile / 8;  // 8 values of 16 bits: 16 bytes
  for (int chunk = threadIdx.x; chunk < Shape::kDepth * kRowChunks; chunk += Shape::kThreads) {
    const int depth = chunk / kRowChunks;
    const int offset = chunk % kRowChunks * 8;
    const int32_t block = first + depth / Shape::kBlockCols;
    const int64_t column = tile_start + offset;
    int64_t input = p.inputs;
    if (block < end) {
      input = static_cast<int64_t>(p.columns[block]) * Shape::kBlockCols + depth % Shape::kBlockCols;
    }
    const bool valid = input < p.inputs && column < p.batch;
    const uint16_t* source = x + (valid ? input * p.batch + column : 0);
    uint16_t* target = stage + depth * Shape::kInputStride + offset;
    if (p.whole_vectors) {
      copy_async(target, source, valid);
    } else {
      const int count = !valid ? 0 : p.batch - column < 8 ? static_cast<int>(p.batch - column) : 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) target[i] = i < count ? source[i] : uint16_t{0};
    }
  }

  constexpr int kValueChunks = Shape::kBlockCols / 8;  // a row of a block
  constexpr int kValueRows = Shape::kStageBlocks * Shape::kBlockRows;
  const uint16_t* const all = p.values + sample * p.value_stride;
  uint16_t* values = stage + Shape::kInputElements;
  for (int chunk = threadIdx.x; chunk < kValueRows * kValueChunks; chunk += Shape::kThreads) {
    const int row = chunk / kValueChunks;  // of all the blocks of the stage
    const int offset = chunk % kValueChunks * 8;
    const int32_t block = first + row / Shape::kBlockRows;
    const bool valid = block < end;
    const int64_t start =
        static_cast<int64_t>(valid ? block : first) * Shape::kBlockRows + row % Shape::kBlockRows;
    copy_async(values + row * Shape::kValueStride + offset, all + start * Shape::kBlockCols + offset, valid);
  }
}

// sum += x' W' over one stage that has arrived.
template <class Element, class Shape>
__device__ __forceinline__ void multiply_stage(
    float (&sum)[Shape::kWarpTiles][Shape::kOutputTiles][4], const uint16_t* stage, int warp_start) {
  constexpr int kUnits = Shape::kSteps * Shape::kOutputTiles;
  const int lane = threadIdx.x % 32;
  const int matrix = lane / 8, matrix_row = lane % 8;

  // W' of a step and a run of 8 outputs is one unit: two 8x8 matrices, the first and the second 8 inputs.
  const uint16_t* values = stage + Shape::kInputElements;
  uint32_t weights[kUnits / 2][4];
#pragma unroll
  for (int pair = 0; pair < kUnits / 2; ++pair) {
    const int unit = 2 * pair + matrix / 2;
    const int depth = unit / Shape::kOutputTiles * 16 + matrix % 2 * 8;
    const int output = unit % Shape::kOutputTiles * 8 + matrix_row;
    const int row = depth / Shape::kBlockCols * Shape::kBlockRows + output;
    load_matrices(weights[pair], values + row * Shape::kValueStride + depth % Shape::kBlockCols);
  }

#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
#pragma unroll
    for (int m = 0; m < Shape::kWarpTiles; ++m) {
      uint32_t activations[4];
      const int depth = step * 16 + matrix / 2 * 8 + matrix_row;
      const int column = warp_start + m * 16 + matrix % 2 * 8;
      load_matrices_transposed(activations, stage + depth * Shape::kInputStride + column);
#pragma unroll
      for (int n = 0; n < Shape::kOutputTiles; ++n) {
        const int unit = step * Shape::kOutputTiles + n;
        multiply_add<Element>(sum[m][n], activations, weights[unit / 2][unit % 2 * 2],
                              weights[unit / 2][unit % 2 * 2 + 1]);
      }
    }
  }
}

// Eight neighbouring columns of one output: bias, ReLU, rounding.
template <class Element>
__device__ __forceinline__ void store_outputs(const BlockProblem& p, const float* sums, int64_t row,
                                              int64_t column) {
  // (Rows count through all samples.)
  const float bias = p.bias != nullptr ? p.bias[row] : 0.0f;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = activate(sums[i] + bias, p.relu);
  const int64_t start = row * p.batch + column;
  const int count = p.batch - column < 8 ? static_cast<int>(p.batch - column) : 8;

  if (p.float_output) {
    float* y = static_cast<float*>(p.y) + start;
    if (p.whole_vectors) {
      reinterpret_cast<float4*>(y)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(y)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < count) y[i] = v[i];
      }
    }
    return;
  }

  uint16_t* y = static_cast<uint16_t*>(p.y) + start;
  uint16_t bits[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) bits[i] = Element::from_float(v[i]);
  if (p.whole_vectors) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = bits[2 * i] | static_cast<uint32_t>(bits[2 * i + 1]) << 16;
    *reinterpret_cast<uint4*>(y) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) y[i] = bits[i];
    }
  }
}

// One block row and kTile columns of the batch a thread block.
template <class Element, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 512 / Shape::kThreads) block_matmul_kernel(const BlockProblem p) {
  uint16_t* stages = reinterpret_cast<uint16_t*>(shared_memory());
  const int lane = threadIdx.x % 32;
  const int warp_start = static_cast<int>(threadIdx.x) / 32 * Shape::kWarpTiles * 16;
  const int32_t block_row = static_cast<int32_t>(blockIdx.x % p.block_rows);
  const int64_t tile_start = static_cast<int64_t>(blockIdx.x / p.block_rows % p.tiles) * Shape::kTile;
  const int64_t sample = blockIdx.x / p.block_rows / p.tiles;
  const int32_t begin = p.row_offsets[block_row], end = p.row_offsets[block_row + 1];
  const int count = (end - begin + Shape::kStageBlocks - 1) / Shape::kStageBlocks;

  float sum[Shape::kWarpTiles][Shape::kOutputTiles][4];
#pragma unroll
  for (int m = 0; m < Shape::kWarpTiles; ++m)
#pragma unroll
    for (int n = 0; n < Shape::kOutputTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0f;

  // A group is committed even where no stage is left, so that the count of groups is the count of steps.
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) {
    if (s < count) {
      start_stage<Shape>(p, sample, stages + s * Shape::kStageElements, begin + s * Shape::kStageBlocks,
                         end, tile_start);
    }
    copy_async_commit();
  }
  for (int s = 0; s < count; ++s) {
    copy_async_wait<Shape::kStages - 2>();
    // Stage s is there for all threads, and all are done with stage s - 1, whose place is free.
    __syncthreads();
    const int next = s + Shape::kStages - 1;
    if (next < count) {
      start_stage<Shape>(p, sample, stages + next % Shape::kStages * Shape::kStageElements,
                         begin + next * Shape::kStageBlocks, end, tile_start);
    }
    copy_async_commit();
    multiply_stage<Element, Shape>(sum, stages + s % Shape::kStages * Shape::kStageElements, warp_start);
  }
  __syncthreads();  // all are done with the stages: their memory takes the sums

  float* sums = reinterpret_cast<float*>(shared_memory());
#pragma unroll
  for (int m = 0; m < Shape::kWarpTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kOutputTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = warp_start + m * 16 + lane / 4 + i / 2 * 8;
        const int output = n * 8 + lane % 4 * 2 + i % 2;
        sums[output * Shape::kSumStride + column] = sum[m][n][i];
      }
    }
  }
  __syncthreads();

  constexpr int kRowChunks = Shape::kTile / 8;
  for (int chunk = threadIdx.x; chunk < Shape::kBlockRows * kRowChunks; chunk += Shape::kThreads) {
    const int output = chunk / kRowChunks, offset = chunk % kRowChunks * 8;
    const int64_t row = static_cast<int64_t>(block_row) * Shape::kBlockRows + output;
    if (row < p.rows && tile_start + offset < p.batch) {
      store_outputs<Element>(p, sums + output * Shape::kSumStride + offset, sample * p.rows + row,
                             tile_start + offset);
    }
  }
}

}  // namespace cuda
}  // namespace fastlbbnn
