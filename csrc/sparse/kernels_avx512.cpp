// The kernels for x86 with AVX-512 (F, BW, DQ and VL).
#if defined(__x86_64__)
#include <cstdint>
#include <vector>
// See csrc/cpu/kernels_avx2.cpp for why the standard headers come first.
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define FASTLBBNN_ARCH avx512
#include "../common/vec_avx512.h"
#include "lanes_avx512.h"

#include "kernel_table.h"

FASTLBBNN_SPARSE_TABLE(kAvx512, "avx512", 4)
#endif
