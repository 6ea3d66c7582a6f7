// What a GPU does in one instruction that C++ has no word for: loads of matrix fragments, products on
// tensor cores, asynchronous copies, conversions. All of it is in sm_80 and everything newer.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace fastlbbnn {
namespace cuda {

// The block's dynamic shared memory, aligned for 16-byte access.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char fastlbbnn_shared[];
  return fastlbbnn_shared;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Sixteen-bit floats are carried as their bits; these name the type.
struct Float16 {
  using Storage = uint16_t;
  static __device__ __forceinline__ float to_float(uint16_t v) { return __half2float(__ushort_as_half(v)); }
  static __device__ __forceinline__ uint16_t from_float(float v) {
    return __half_as_ushort(__float2half_rn(v));
  }
};
struct BFloat16 {
  using Storage = uint16_t;
  static __device__ __forceinline__ float to_float(uint16_t v) {
    return __bfloat162float(__ushort_as_bfloat16(v));
  }
  static __device__ __forceinline__ uint16_t from_float(float v) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
  }
};

// Four 8x8 matrices of 16-bit values, matrix i from the rows that lanes 8i to 8i+7 point to. Lane l
// receives the elements (l/4, 2(l%4)) and (l/4, 2(l%4)+1) of each.
__device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same of the transposed matrices.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&fragment)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address(row))
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8] by one warp, in float32. With g = lane/4 and t = lane%4 a lane holds
//   a[0..3]: rows g, g+8, g, g+8 at columns 2t, 2t, 2t+8, 2t+8, and the column after each
//   b0, b1:  rows 2t and 2t+8, and the row after each, at column g
//   c[0..3]: row g at columns 2t, 2t+1, then row g+8
template <class Element>
__device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#define FASTLBBNN_MULTIPLY_ADD(ELEMENT, NAME)                                                      \
  template <>                                                                                      \
  __device__ __forceinline__ void multiply_add<ELEMENT>(float (&c)[4], const uint32_t (&a)[4],     \
                                                        uint32_t b0, uint32_t b1) {                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                            \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                  \
  }
FASTLBBNN_MULTIPLY_ADD(Float16, "f16")
FASTLBBNN_MULTIPLY_ADD(BFloat16, "bf16")
#undef FASTLBBNN_MULTIPLY_ADD

// Starts a copy of 16 bytes to shared memory; writes zeros, and reads nothing, where it is not valid.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

// The copies that this thread started since the last commit are one group.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's latest groups are under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Starts a kernel of one-dimensional grid and blocks; the value is CUDA's error code, 0 for none.
template <class Kernel, class Argument>
inline int launch(Kernel* kernel, int64_t blocks, int threads, int shared_bytes, void* stream,
                  const Argument& argument) {
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(
      argument);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace cuda
}  // namespace fastlbbnn
