// The kernels for x86 with AVX2 and FMA.
#if defined(__x86_64__)
#include <cstdint>
#include <vector>
// See csrc/cpu/kernels_avx2.cpp for why the standard headers come first.
#pragma GCC target("avx2,fma")
#define FASTLBBNN_ARCH avx2
#include "../common/vec_avx2.h"
#include "lanes_avx2.h"

#include "kernel_table.h"

FASTLBBNN_SPARSE_TABLE(kAvx2, "avx2", 2)
#endif
