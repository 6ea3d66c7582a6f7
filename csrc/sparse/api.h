// The C interface, for ctypes: fastlbbnn/sparse/_library.py mirrors the structs.
//
// Arguments are checked by the caller (fastlbbnn/sparse/formats.py: validate). Functions that return
// int give 0, or 1 when memory ran out.
#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define FL_API extern "C" __attribute__((visibility("default")))
#else
#define FL_API extern "C"
#endif

// A layer: formats.SparseLayer. Block arrays are null where block_rows is 0.
struct FlLayer {
  int64_t rows, cols;
  const int64_t* row_offsets;
  const void* columns;
  const float *mean, *scale, *bias_mean, *bias_scale;   // scales may be null
  const int32_t *row_index, *col_index;
  int64_t block_rows, block_cols;
  const int32_t* block_row_offsets;
  const void* block_columns;
  const float* block_values;
  int32_t column_bytes, block_column_bytes, relu;
};

// What is the same in many calls: layers [first, last) of observations x [batch, stride] by rows.
struct FlPass {
  const void* network;
  const void* draws;         // null: the means
  const int32_t* formats;    // 0: by rows, 1: by blocks; a layer of the network each
  int64_t stride;
  int32_t first, last, threads;
};

// Bumped with every change of this file.
FL_API int32_t fl_sparse_version();
FL_API const char* fl_sparse_kernels();

// Use the threads behind a function like fastlbbnn_run_parallel (csrc/cpu/torch_threads.cpp); null:
// threads of its own.
FL_API void fl_sparse_borrow_threads(void* runner);

FL_API void* fl_sparse_create(const FlLayer* layers, int32_t count, const int32_t* inputs);
FL_API void fl_sparse_destroy(void* network);
// y: [batch, outputs], with draws [samples, batch, outputs].
FL_API int32_t fl_sparse_run(const FlPass* pass, const float* x, int64_t batch, float* y);

// values: [weights] or null, bias: [rows], in the order of the layer's arrays.
FL_API int32_t fl_sparse_draw(const FlLayer* layer, uint64_t seed, uint32_t sample, float* values,
                              float* bias);

// Sampled weights to predict with, for one choice of formats; side_by_side: kept for batches of which
// fl_sparse_side_by_side says so, for which formats do not matter.
FL_API int32_t fl_sparse_side_by_side(int32_t samples, int64_t batch);
FL_API void* fl_sparse_draws_create(const void* network, int32_t samples, const int32_t* formats,
                                    int32_t side_by_side);
FL_API void fl_sparse_draws_destroy(void* draws);
// All samples of a layer of the network; `posterior` is the same in all calls. biases: [samples, rows] to take
// instead of drawing them, or null.
FL_API int32_t fl_sparse_draws_fill(const void* network, void* draws, int32_t layer,
                                    const FlLayer* posterior, uint64_t seed, int32_t threads,
                                    const float* biases);
