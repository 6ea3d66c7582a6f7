// Starts the block-sparse kernels: which one, over how many thread blocks.
#include "block_matmul.cuh"
#include "grid.h"
#include "launchers.h"

namespace {

using namespace fastlbbnn::cuda;

template <class Element, class Shape>
int start(BlockProblem problem, void* stream) {
  const int64_t block_rows = ceil_divide(problem.rows, Shape::kBlock);
  const int64_t blocks = grid_blocks(block_rows, ceil_divide(problem.batch, Shape::kTile));
  if (blocks < 0) return FASTLBBNN_TOO_LARGE;
  problem.block_rows = static_cast<int32_t>(block_rows);
  return launch(block_matmul_kernel<Element, Shape>, blocks, Shape::kThreads, Shape::kSharedBytes, stream,
                problem);
}

template <class Element, int kBlock>
int choose_tile(const BlockProblem& problem, void* stream) {
  return problem.batch <= 64 ? start<Element, BlockShape<kBlock, 32>>(problem, stream)
                             : start<Element, BlockShape<kBlock, 128>>(problem, stream);
}

template <class Element>
int choose_block(const BlockProblem& problem, int block, void* stream) {
  switch (block) {
    case 8: return choose_tile<Element, 8>(problem, stream);
    case 16: return choose_tile<Element, 16>(problem, stream);
    case 32: return choose_tile<Element, 32>(problem, stream);
    default: return FASTLBBNN_BAD_ARGUMENT;
  }
}

}  // namespace

extern "C" int fastlbbnn_block_matmul(const int32_t* row_offsets, const int32_t* columns, const void* values,
                                      const float* bias, const void* x, void* y, int64_t rows, int64_t inputs,
                                      int64_t batch, int block, int bfloat16, int float_output, int relu,
                                      void* stream) {
  if (rows < 0 || inputs < 0 || batch < 0 || (block != 8 && block != 16 && block != 32)) {
    return FASTLBBNN_BAD_ARGUMENT;
  }
  if (!is_aligned(values)) return FASTLBBNN_UNALIGNED;
  if (rows == 0 || batch == 0) return 0;
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
  problem.whole_vectors = batch % 8 == 0 && is_aligned(x) && is_aligned(y);
  problem.float_output = float_output != 0;
  problem.relu = relu != 0;
  return bfloat16 != 0 ? choose_block<BFloat16>(problem, block, stream)
                       : choose_block<Float16>(problem, block, stream);
}
