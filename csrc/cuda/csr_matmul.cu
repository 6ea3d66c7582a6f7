// Starts the unstructured kernels: which one, over how many thread blocks.
#include "csr_matmul.cuh"
#include "grid.h"
#include "launchers.h"

namespace {

using namespace fastlbbnn::cuda;

template <class Index>
using CsrKernel = void(const CsrProblem<Index>);

// `tile` columns of the batch and `rows_per_block` rows a thread block.
template <class Index>
int start(CsrKernel<Index>* kernel, CsrProblem<Index> problem, int rows_per_block, int tile, void* stream) {
  const int64_t row_groups = ceil_divide(problem.rows, rows_per_block);
  const int64_t blocks = grid_blocks(row_groups, ceil_divide(problem.batch, tile));
  if (blocks < 0) return FASTLBBNN_TOO_LARGE;
  problem.row_groups = static_cast<int32_t>(row_groups);
  return launch(kernel, blocks, kCsrThreads, 0, stream, problem);
}

template <class Index, int kVector, int kLanes>
int start_wide(const CsrProblem<Index>& problem, void* stream) {
  return start<Index>(csr_matmul_kernel<Index, kVector, kLanes>, problem, kCsrThreads / kLanes,
                      kVector * kLanes, stream);
}

// A lane that has no column of the batch does nothing: 8 lanes a row until a batch fills more.
template <class Index>
int choose(const CsrProblem<Index>& problem, void* stream) {
  const int64_t batch = problem.batch;
  if (batch < 8) {
    return start<Index>(csr_matmul_narrow_kernel<Index>, problem, kCsrThreads / 32, kCsrNarrow, stream);
  }
  if (batch % 4 == 0 && is_aligned(problem.x) && is_aligned(problem.y)) {
    return batch <= 64 ? start_wide<Index, 4, 8>(problem, stream) : start_wide<Index, 4, 32>(problem, stream);
  }
  return batch <= 16 ? start_wide<Index, 1, 8>(problem, stream) : start_wide<Index, 1, 32>(problem, stream);
}

template <class Index>
int matmul(const int32_t* row_offsets, const void* columns, const float* values, const float* bias,
           const float* x, float* y, int64_t rows, int64_t batch, int relu, void* stream) {
  CsrProblem<Index> problem{};
  problem.row_offsets = row_offsets;
  problem.columns = static_cast<const Index*>(columns);
  problem.values = values;
  problem.bias = bias;
  problem.x = x;
  problem.y = y;
  problem.batch = batch;
  problem.rows = static_cast<int32_t>(rows);
  problem.relu = relu != 0;
  return choose(problem, stream);
}

}  // namespace

extern "C" int fastlbbnn_csr_matmul(const int32_t* row_offsets, const void* columns, int index_bytes,
                                    const float* values, const float* bias, const float* x, float* y,
                                    int64_t rows, int64_t batch, int relu, void* stream) {
  if (rows < 0 || batch < 0 || (index_bytes != 2 && index_bytes != 4)) return FASTLBBNN_BAD_ARGUMENT;
  if (rows > INT32_MAX) return FASTLBBNN_TOO_LARGE;
  if (rows == 0 || batch == 0) return 0;
  const auto run = index_bytes == 2 ? matmul<uint16_t> : matmul<int32_t>;
  return run(row_offsets, columns, values, bias, x, y, rows, batch, relu, stream);
}
