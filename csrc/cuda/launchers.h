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

// y = relu(W x + b), unstructured, float32. row_offsets [rows + 1]; columns, values [weights];
// at most 2^31 - 64 of them; index_bytes: 2 (uint16) or 4 (int32); bias [rows] or null; x [inputs, batch]; y [rows, batch].
FASTLBBNN_EXPORT int fastlbbnn_csr_matmul(const int32_t* row_offsets, const void* columns, int index_bytes,
                                          const float* values, const float* bias, const float* x, float* y,
                                          int64_t rows, int64_t batch, int relu, void* stream);

// The same in blocks of block x block weights, block 8, 16 or 32, on tensor cores.
// row_offsets [ceil(rows / block) + 1]; columns [blocks], in units of blocks; values [blocks, block,
// block] and x [inputs, batch] in float16 (bfloat16 = 0) or bfloat16 (1); y [rows, batch] in the same,
// or in float32 where float_output is 1. Weights beyond the last row are ignored; those beyond the last
// input meet zeros, so they must be finite.
FASTLBBNN_EXPORT int fastlbbnn_block_matmul(const int32_t* row_offsets, const int32_t* columns,
                                            const void* values, const float* bias, const void* x, void* y,
                                            int64_t rows, int64_t inputs, int64_t batch, int block,
                                            int bfloat16, int float_output, int relu, void* stream);

#ifdef __cplusplus
}
#endif
