// Sizes of a grid, on the host.
#pragma once

#include <cstdint>

namespace fastlbbnn {
namespace cuda {

inline int64_t ceil_divide(int64_t n, int64_t by) { return n / by + (n % by != 0); }

// a*b thread blocks, or -1 where a grid does not hold that many.
inline int64_t grid_blocks(int64_t a, int64_t b) {
  return a != 0 && b > INT32_MAX / a ? -1 : a * b;
}

// Whether 16-byte access is allowed.
inline bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace cuda
}  // namespace fastlbbnn
