// The C interface of the CUDA library: raw device pointers and sizes, no torch.
//
// Every function starts its kernel on `stream` (a cudaStream_t) and returns at once: 0, a CUDA error
// code above 0, or one of the codes below. Nothing is started when a code is returned.
#pragma once

#include <stdint.h>

#define FASTLBBNN_EXPORT __attribute__((visibility("default")))

enum {
  FASTLBBNN_BAD_ARGUMENT = -1,  // a size below zero, an unknown block size, element or index width
  FASTLBBNN_TOO_LARGE = -2,     // more thread blocks than one grid holds
  FASTLBBNN_UNALIGNED = -3,     // block values that do not start at a multiple of 16 bytes
};

#ifdef __cplusplus
extern "C" {
#endif

// Changes whenever a signature below does.
FASTLBBNN_EXPORT int fastlbbnn_cuda_interface(void);

// A word for one of the codes above 0: cudaGetErrorString.
FASTLBBNN_EXPORT const char* fastlbbnn_cuda_error(int code);

// All of them compute `samples` sampled networks at once: values, bias and y are those of the first
// sample, then those of the second, and so on; x likewise, unless shared_input is 1.
// element: 0 float32, 1 float16, 2 bfloat16; sums are float32, and y is where float_output is 1.

// y = relu(W x + b), unstructured. row_offsets [rows + 1]; columns [weights], at most 2^31 - 64 of them,
// index_bytes 2 (uint16) or 4 (int32); values [samples, weights] of the element; bias [samples, rows] or
// null; x [inputs, batch] of the element; y [samples, rows, batch].
FASTLBBNN_EXPORT int fastlbbnn_csr_matmul(const int32_t* row_offsets, const void* columns, int index_bytes,
                                          const void* values, const float* bias, const void* x, void* y,
                                          int64_t rows, int64_t inputs, int64_t batch, int64_t weights,
                                          int64_t samples, int shared_input, int element, int float_output,
                                          int relu, void* stream);

// The same in blocks of block_rows x block_cols weights, each 8, 16 or 32, on tensor cores, in float16 or
// bfloat16. row_offsets [ceil(rows / block_rows) + 1]; columns [blocks], in units of blocks; values
// [samples, blocks, block_rows, block_cols]. Weights beyond the last row are ignored; those beyond the
// last input meet zeros, so they must be finite.
FASTLBBNN_EXPORT int fastlbbnn_block_matmul(const int32_t* row_offsets, const int32_t* columns,
                                            const void* values, const float* bias, const void* x, void* y,
                                            int64_t rows, int64_t inputs, int64_t batch, int64_t blocks,
                                            int block_rows, int block_cols, int64_t samples, int shared_input,
                                            int element, int float_output, int relu, void* stream);

// values[sample, place[i]] = mean[i] + scale[i] eps, rounded to the element, for weights by rows as above.
// eps is that of (seed, stream_of_noise, sample, row_index[row], col_index[column]). mean, scale [weights];
// place [weights] or null: i; stride: values of a sample. row_offsets null: all in row 0; columns null:
// weight i in column i (biases are so).
FASTLBBNN_EXPORT int fastlbbnn_draw_weights(const int32_t* row_offsets, const void* columns, int index_bytes,
                                            const float* mean, const float* scale, const int32_t* row_index,
                                            const int32_t* col_index, const int32_t* place, void* values,
                                            int64_t rows, int64_t weights, int64_t stride, int64_t samples,
                                            uint64_t seed, int stream_of_noise, int element, void* stream);

#ifdef __cplusplus
}
#endif
