// The kernels for x86 with AVX-512 (F, BW, DQ and VL: every server since 2017 that has it).
#if defined(__x86_64__)
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>
// See kernels_avx2.cpp for why the standard headers come first.
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define FASTLBBNN_ARCH avx512
#include "../common/vec_avx512.h"

#include "kernel_table.h"

FASTLBBNN_KERNEL_TABLE(kAvx512Kernels, "avx512", FASTLBBNN_ARCH::product<FASTLBBNN_ARCH::Vec>)
#endif
