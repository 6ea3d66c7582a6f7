// The kernels for x86 with AVX2 and FMA.
#if defined(__x86_64__)
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>
// The standard headers above come first: nothing of theirs may be compiled with these instructions,
// because the linker could pick that copy for a processor without them.
#pragma GCC target("avx2,fma")
#define FASTLBBNN_ARCH avx2
#include "../common/vec_avx2.h"

#include "kernel_table.h"

FASTLBBNN_KERNEL_TABLE(kAvx2Kernels, "avx2", FASTLBBNN_ARCH::product<FASTLBBNN_ARCH::Vec>)
#endif
