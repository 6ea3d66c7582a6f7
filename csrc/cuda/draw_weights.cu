// Starts the kernel that samples weights.
#include "draw_weights.cuh"
#include "grid.h"
#include "launchers.h"

extern "C" int fastlbbnn_draw_weights(const int32_t* row_offsets, const void* columns, int index_bytes,
                                      const float* mean, const float* scale, const int32_t* row_index,
                                      const int32_t* col_index, const int32_t* place, void* values,
                                      int64_t rows, int64_t weights, int64_t stride, int64_t samples,
                                      uint64_t seed, int stream_of_noise, int element, void* stream) {
  using namespace fastlbbnn::cuda;
  if (rows < 0 || weights < 0 || stride < 0 || samples < 0 || element < 0 || element > 2 ||
      stream_of_noise < 0 || (index_bytes != 2 && index_bytes != 4)) {
    return FASTLBBNN_BAD_ARGUMENT;
  }
  if (rows > INT32_MAX || weights > INT32_MAX) return FASTLBBNN_TOO_LARGE;
  if (weights == 0 || samples == 0) return 0;
  const int64_t groups = ceil_divide(weights, kDrawThreads);
  const int64_t blocks = grid_blocks(groups, samples);
  if (blocks < 0) return FASTLBBNN_TOO_LARGE;
  DrawProblem problem{};
  problem.row_offsets = row_offsets;
  problem.columns = {columns, index_bytes == 4};
  problem.mean = mean;
  problem.scale = scale;
  problem.row_index = row_index;
  problem.col_index = col_index;
  problem.place = place;
  problem.values = values;
  problem.stride = stride;
  problem.seed = seed;
  problem.rows = static_cast<int32_t>(rows);
  problem.weights = static_cast<int32_t>(weights);
  problem.groups = static_cast<int32_t>(groups);
  problem.stream = static_cast<uint32_t>(stream_of_noise);
  problem.element = static_cast<ElementCode>(element);
  return launch(draw_weights_kernel, blocks, kDrawThreads, 0, stream, problem);
}
