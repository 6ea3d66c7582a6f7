// The CUDA words that the kernels use: from nvcc, or from an emulation on the CPU. The kernels include
// this header and nothing of CUDA's own, so that the tests can run the very same source without a GPU.
#pragma once

#ifdef __CUDACC__
#include "hardware.cuh"
#else
#include "cuda_emulation.h"  // tests/cuda/emulation
#endif
