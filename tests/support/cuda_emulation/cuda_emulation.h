// The CUDA words of csrc/cuda/device.cuh, executed by a CPU: the kernels are compiled by a C++ compiler
// with this header in place of hardware.cuh, and run under its sanitizers.
//
// Every thread of a thread block is a fiber; fibers.h runs one at a time, always the first that can in an
// order that a test chooses. What real threads may do in any order therefore happens here in the most
// unequal ones, and a result that depends on the order gives a missing barrier away.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fibers.h"
#include "floats.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Dimension {
  unsigned x;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

#define threadIdx (Dimension{emulation::current().thread})
#define blockIdx (Dimension{emulation::state().block_index})

// Rounded on their own: the tests compile without fused multiply-add.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int32_t __float_as_int(float v) { return static_cast<int32_t>(emulation::bits_of(v)); }
inline float __int_as_float(int32_t v) { return emulation::float_of(static_cast<uint32_t>(v)); }

using cudaError_t = int;
inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }

// Called where __builtin_LINE() is taken: a test can leave one of them out by its line.
inline void __syncthreads(int line = __builtin_LINE()) {
  if (emulation::state().options.visit(line)) emulation::block_barrier();
}

// Every lane of the mask brings a value and sees those of all; a lane that is not in it takes no part.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = emulation::current().lane();
  const auto all = emulation::exchange(mask, value);
  return all->template get<T>(lane / width * width + source % width, mask);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int distance) {
  const int lane = emulation::current().lane();
  return emulation::exchange(mask, value)->template get<T>(lane ^ distance, mask);
}

namespace fastlbbnn {
namespace cuda {

using emulation::BFloat16;
using emulation::Float16;

inline unsigned char* shared_memory() { return emulation::state().shared; }

constexpr unsigned kFullWarp = 0xffffffffu;

inline void load_rows(uint32_t (&fragment)[4], const uint16_t* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulation::fail("ldmatrix: a row is not 16-byte aligned");
  const int lane = emulation::current().lane();
  const auto rows = emulation::exchange(kFullWarp, row);
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int along = lane / 4, across = lane % 4 * 2 + e;
      const int r = transposed ? across : along, c = transposed ? along : across;
      pair[e] = rows->get<const uint16_t*>(8 * i + r, kFullWarp)[c];
    }
    fragment[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}
inline void load_matrices(uint32_t (&fragment)[4], const uint16_t* row) { load_rows(fragment, row, false); }
inline void load_matrices_transposed(uint32_t (&fragment)[4], const uint16_t* row) {
  load_rows(fragment, row, true);
}

// What a lane brings to the tensor core.
struct Fragment {
  uint32_t a[4], b[2];
};

// The tensor core: c[16, 8] += a[16, 16] b[16, 8]. Products of 16-bit floats are exact in float32 (fp16:
// 22 bits, bf16: 16); they are added one by one.
template <class Element>
inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto warp = emulation::exchange(kFullWarp, Fragment{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto half = [](uint32_t word, int k) {
    return Element::to_float(static_cast<uint16_t>(k % 2 == 0 ? word & 0xffffu : word >> 16));
  };
  const int lane = emulation::current().lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      // Who holds a[row, k], and who b[k, column].
      const int a_lane = row % 8 * 4 + k % 8 / 2, a_word = row / 8 + k / 8 * 2;
      const int b_lane = column * 4 + k % 8 / 2, b_word = k / 8;
      c[i] += half(warp->get<Fragment>(a_lane, kFullWarp).a[a_word], k) *
              half(warp->get<Fragment>(b_lane, kFullWarp).b[b_word], k);
    }
  }
}

// A copy happens when it is started or when it is waited for: both are allowed on a GPU, the test says
// which.
inline void copy_async(void* shared, const void* global, bool valid) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 ||
      (valid && reinterpret_cast<uintptr_t>(global) % 16 != 0)) {
    emulation::fail("cp.async: an address is not 16-byte aligned");
  }
  emulation::current().copies.start({shared, global, valid}, emulation::state().options.late_copies);
}
inline void copy_async_commit() { emulation::current().copies.commit(); }
template <int kPending>
inline void copy_async_wait(int line = __builtin_LINE()) {
  if (emulation::state().options.visit(line)) emulation::current().copies.wait(kPending);
}

template <class Kernel, class Argument>
inline int launch(Kernel* kernel, int64_t blocks, int threads, int shared_bytes, void*,
                  const Argument& argument) {
  for (int64_t block = 0; block < blocks; ++block) {
    emulation::run_block(static_cast<unsigned>(block), threads, shared_bytes, [&] { kernel(argument); });
  }
  return 0;
}

}  // namespace cuda
}  // namespace fastlbbnn
