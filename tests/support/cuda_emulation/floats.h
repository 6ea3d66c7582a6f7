// Sixteen-bit floats as bits, rounded to nearest, ties to even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulation {

inline uint32_t bits_of(float v) {
  uint32_t b;
  std::memcpy(&b, &v, sizeof b);
  return b;
}
inline float float_of(uint32_t b) {
  float v;
  std::memcpy(&v, &b, sizeof v);
  return v;
}

struct BFloat16 {
  using Storage = uint16_t;
  static uint16_t from_float(float v) {
    const uint32_t b = bits_of(v);
    if (std::isnan(v)) return 0x7fff;
    return static_cast<uint16_t>((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
  }
  static float to_float(uint16_t b) { return float_of(static_cast<uint32_t>(b) << 16); }
};

struct Float16 {
  using Storage = uint16_t;
  static uint16_t from_float(float v) {
    if (std::isnan(v)) return 0x7fff;
    const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    const double magnitude = std::fabs(static_cast<double>(v));
    if (magnitude >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00);  // rounds beyond the largest
    // One unit in the last place: 2^-24 below 2^-14, else 2^(exponent - 10). nearbyint ties to even.
    int exponent = -14;
    if (magnitude >= std::ldexp(1.0, -14)) exponent = std::ilogb(magnitude);
    const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    // 1024 units begin the next exponent, so that a carry out of the mantissa needs no case of its own.
    return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 14) << 10) + units));
  }
  static float to_float(uint16_t b) {
    const int exponent = b >> 10 & 31, mantissa = b & 1023;
    float v;
    if (exponent == 31) {
      v = mantissa != 0 ? NAN : INFINITY;
    } else {
      v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                        : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    }
    return (b & 0x8000) != 0 ? -v : v;
  }
};

}  // namespace emulation
