// Starts the unstructured kernels: which one, over how many thread blocks.
#include "csr_matmul.cuh"
#include "grid.h"
#include "launchers.h"

namespace {

using namespace fastlbbnn::cuda;

// `tile` columns of the batch and `rows_per_block` rows a thread block.
int start(void (*kernel)(const CsrProblem), CsrProblem problem, int64_t samples, int rows_per_block, int tile,
          void* stream) {
  const int64_t row_groups = ceil_divide(problem.rows, rows_per_block);
  const int64_t tiles = ceil_divide(problem.batch, tile);
  const int64_t blocks = grid_blocks(row_groups, tiles) < 0 ? -1 : grid_blocks(row_groups * tiles, samples);
  if (blocks < 0) return FASTLBBNN_TOO_LARGE;
  problem.row_groups = static_cast<int32_t>(row_groups);
  problem.tiles = static_cast<int32_t>(tiles);
  return launch(kernel, blocks, kCsrThreads, 0, stream, problem);
}

template <class Element, int kVector, int kLanes>
int start_wide(const CsrProblem& problem, int64_t samples, void* stream) {
  return start(csr_matmul_kernel<Element, kVector, kLanes>, problem, samples, kCsrThreads / kLanes,
               kVector * kLanes, stream);
}

// A lane that has no column of the batch does nothing: 8 lanes a row until a batch fills more.
template <class Element>
int choose(const CsrProblem& problem, int64_t samples, void* stream) {
  constexpr int kVector = 16 / sizeof(typename Element::Storage);
  const int64_t batch = problem.batch;
  if (batch < 8) {
    return start(csr_matmul_narrow_kernel<Element>, problem, samples, kCsrThreads / 32, kCsrNarrow, stream);
  }
  if (batch % kVector == 0 && is_aligned(problem.x) && is_aligned(problem.y)) {
    return batch <= 16 * kVector ? start_wide<Element, kVector, 8>(problem, samples, stream)
                                 : start_wide<Element, kVector, 32>(problem, samples, stream);
  }
  return batch <= 16 ? start_wide<Element, 1, 8>(problem, samples, stream)
                     : start_wide<Element, 1, 32>(problem, samples, stream);
}

}  // namespace

extern "C" int fastlbbnn_csr_matmul(const int32_t* row_offsets, const void* columns, int index_bytes,
                                    const void* values, const float* bias, const void* x, void* y,
                                    int64_t rows, int64_t inputs, int64_t batch, int64_t weights,
                                    int64_t samples, int shared_input, int element, int float_output, int relu,
                                    void* stream) {
  if (rows < 0 || inputs < 0 || batch < 0 || weights < 0 || samples < 0 || element < 0 || element > 2 ||
      (index_bytes != 2 && index_bytes != 4)) {
    return FASTLBBNN_BAD_ARGUMENT;
  }
  if (rows > INT32_MAX) return FASTLBBNN_TOO_LARGE;
  if (rows == 0 || batch == 0 || samples == 0) return 0;
  CsrProblem problem{};
  problem.row_offsets = row_offsets;
  problem.columns = {columns, index_bytes == 4};
  problem.values = values;
  problem.bias = bias;
  problem.x = x;
  problem.y = y;
  problem.batch = batch;
  problem.weights = weights;
  problem.x_stride = shared_input != 0 ? 0 : inputs * batch;
  problem.rows = static_cast<int32_t>(rows);
  problem.float_output = float_output != 0;
  problem.relu = relu != 0;
  switch (static_cast<ElementCode>(element)) {
    case ElementCode::kFloat16: return choose<Float16>(problem, samples, stream);
    case ElementCode::kBFloat16: return choose<BFloat16>(problem, samples, stream);
    default: return choose<Float32>(problem, samples, stream);
  }
}
