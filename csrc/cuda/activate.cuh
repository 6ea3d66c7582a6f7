// What follows the product in every kernel.
#pragma once

#include "device.cuh"

namespace fastlbbnn {
namespace cuda {

// Lets NaN through, as torch.relu does.
__device__ __forceinline__ float activate(float v, bool relu) { return relu && v < 0.0f ? 0.0f : v; }

}  // namespace cuda
}  // namespace fastlbbnn
