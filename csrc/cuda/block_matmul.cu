// Starts the block-sparse kernels: which one, over how many thread blocks.
#include "block_matmul.cuh"
#include "elements.cuh"
#include "grid.h"
#include "launchers.h"

namespace {

using namespace fastlbbnn::cuda;

template <class Element, class Shape>
int start(BlockProblem problem, int64_t samples, void* stream) {
  const int64_t block_rows = ceil_divide(problem.rows, Shape::kBlockRows);
  const int64_t tiles = ceil_divide(problem.batch, Shape::kTile);
  const int64_t blocks = grid_blocks(block_rows, tiles) < 0 ? -1 : grid_blocks(block_rows * tiles, samples);
  if (blocks < 0) return FASTLBBNN_TOO_LARGE;
  problem.block_rows = static_cast<int32_t>(block_rows);
  problem.tiles = static_cast<int32_t>(tiles);
  return launch(block_matmul_kernel<Element, Shape>, blocks, Shape::kThreads, Shape::kSharedBytes, stream,
                problem);
}

// Square blocks are the common ones and have a tile for small batches of their own.
template <class Element, int kRows, int kCols>
int choose_tile(const BlockProblem& problem, int64_t samples, void* stream) {
  if constexpr (kRows == kCols) {
    return problem.batch <= 64 ? start<Element, BlockShape<kRows, kCols, 32>>(problem, samples, stream)
                               : start<Element, BlockShape<kRows, kCols, 128>>(problem, samples, stream);
  } else {
    return start<Element, BlockShape<kRows, kCols, 64>>(problem, samples, stream);
  }
}

template <class Element, int kRows>
int choose_cols(const BlockProblem& problem, int cols, int64_t samples, void* stream) {
  switch (cols) {
    case 8: return choose_tile<Element, kRows, 8>(problem, samples, stream);
    case 16: return choose_tile<Element, kRows, 16>(problem, samples, stream);
    default: return choose_tile<Element, kRows, 32>(problem, samples, stream);
  }
}

template <class Element>
int choose_rows(const BlockProblem& problem, int rows, int cols, int64_t samples, void* stream) {
  switch (rows) {
    case 8: return choose_cols<Element, 8>(problem, cols, samples, stream);
    case 16: return choose_cols<Element, 16>(problem, cols, samples, stream);
    default: return choose_cols<Element, 32>(problem, cols, samples, stream);
  }
}

bool is_block_side(int n) { return n == 8 || n == 16 || n == 32; }

}  // namespace

extern "C" int fastlbbnn_block_matmul(const int32_t* row_offsets, const int32_t* columns, const void* values,
                                      const float* bias, const void* x, void* y, int64_t rows, int64_t inputs,
                                      int64_t batch, int64_t blocks, int block_rows, int block_cols,
                                      int64_t samples, int shared_input, int element, int float_output, int relu,
                                      void* stream) {
  const auto code = static_cast<ElementCode>(element);
  if (rows < 0 || inputs < 0 || batch < 0 || blocks < 0 || samples < 0 || !is_block_side(block_rows) ||
      !is_block_side(block_cols) || (code != ElementCode::kFloat16 && code != ElementCode::kBFloat16)) {
    return FASTLBBNN_BAD_ARGUMENT;
  }
  if (!is_aligned(values)) return FASTLBBNN_UNALIGNED;
  if (rows == 0 || batch == 0 || samples == 0) return 0;
  BlockProblem problem{};
  problem.row_offsets = row_offsets;
  problem.columns = columns;
  problem.values = static_cast<const uint16_t*>(values);
  problem.bias = bias;
  problem.x = static_cast<const uint16_t*>(x);
  problem.y = y;
  problem.rows = rows;
  problem.inputs = inputs;
  problem.batch = batch;
  problem.value_stride = blocks * block_rows * block_cols;
  problem.x_stride = shared_input != 0 ? 0 : inputs * batch;
  problem.whole_vectors = batch % 8 == 0 && is_aligned(x) && is_aligned(y);
  problem.float_output = float_output != 0;
  problem.relu = relu != 0;
  return code == ElementCode::kBFloat16 ? choose_rows<BFloat16>(problem, block_rows, block_cols, samples, stream)
                                        : choose_rows<Float16>(problem, block_rows, block_cols, samples, stream);
}
