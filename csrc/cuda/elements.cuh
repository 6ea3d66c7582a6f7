// What activations and weights are kept in: float32, or 16 bits with float32 sums.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace fastlbbnn {
namespace cuda {

// As the C interface counts them.
enum class ElementCode : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

struct Float32 {
  using Storage = float;
  static __device__ __forceinline__ float to_float(float v) { return v; }
  static __device__ __forceinline__ float from_float(float v) { return v; }
};

// kVector neighbouring values as they lie in memory, loaded at once: 1, or 16 bytes of them.
template <class Element, int kVector>
struct Pack {
  using Storage = typename Element::Storage;
  static_assert(kVector == 1 || kVector * sizeof(Storage) == 16, "one value, or 16 bytes");
  uint4 raw;

  __device__ __forceinline__ void load(const Storage* p) { raw = *reinterpret_cast<const uint4*>(p); }
  __device__ __forceinline__ float at(int i) const {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    return Element::to_float(static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
  }
};

template <>
struct Pack<Float32, 4> {
  float4 raw;
  __device__ __forceinline__ void load(const float* p) { raw = *reinterpret_cast<const float4*>(p); }
  __device__ __forceinline__ float at(int i) const {
    return i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w;
  }
};

template <class Element>
struct Pack<Element, 1> {
  typename Element::Storage raw;
  __device__ __forceinline__ void load(const typename Element::Storage* p) { raw = *p; }
  __device__ __forceinline__ float at(int) const { return Element::to_float(raw); }
};

// kVector outputs, in the element or in float32, stored 16 bytes at a time.
template <class Element, int kVector>
__device__ __forceinline__ void store_pack(void* y, int64_t at, bool float_output,
                                           const float (&v)[kVector]) {
  if (float_output) {
    float* to = static_cast<float*>(y) + at;
    if constexpr (kVector % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kVector; i += 4) {
        *reinterpret_cast<float4*>(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
      }
    } else {
      to[0] = v[0];
    }
    return;
  }
  auto* to = static_cast<typename Element::Storage*>(y) + at;
  if constexpr (kVector == 8) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = Element::from_float(v[2 * i]) |
                 static_cast<uint32_t>(Element::from_float(v[2 * i + 1])) << 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] = Element::from_float(v[i]);
  }
}

// Column indices of 16 or 32 bits.
struct ColumnIndices {
  const void* data;
  bool wide;
  __device__ __forceinline__ int32_t operator[](int32_t i) const {
    return wide ? static_cast<const int32_t*>(data)[i]
                : static_cast<int32_t>(static_cast<const uint16_t*>(data)[i]);
  }
};

}  // namespace cuda
}  // namespace fastlbbnn
