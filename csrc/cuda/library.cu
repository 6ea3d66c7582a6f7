// What the library says about itself.
#include "device.cuh"
#include "launchers.h"

extern "C" int fastlbbnn_cuda_interface(void) { return 2; }

extern "C" const char* fastlbbnn_cuda_error(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}
