// CUDA's 16-bit floats for g++, converted in software with rounding to nearest even.
#pragma once

#include <cstdint>

#include "cuda_types.h"

namespace emulation {

constexpr uint32_t kFloatInfinity = 0x7f800000u;
constexpr uint32_t kSmallestNormalHalf = 0x38800000u;  // 2^-14 as a float
constexpr uint32_t kHalfOverflow = 0x477ff000u;        // 65520, from where the nearest is infinity
constexpr uint32_t kExponentShift = 0x38000000u;       // between the biases of the exponents, 112
constexpr uint16_t kNan16 = 0x7fff;

inline uint16_t half_bits(float x) {
  uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
  const uint32_t sign = __float_as_uint(x) >> 16 & 0x8000u;
  if (magnitude > kFloatInfinity) return kNan16;
  if (magnitude >= kHalfOverflow) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < kSmallestNormalHalf) {  // floats next to 0.5 are 2^-24 apart, as these halves are
    const float rounded = __uint_as_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__float_as_uint(rounded) - __float_as_uint(0.5f)));
  }
  magnitude += 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (magnitude - kExponentShift) >> 13);
}

inline float half_value(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  const float value =
      magnitude >= 0x7c00u ? __uint_as_float(kFloatInfinity | (magnitude & 0x3ffu) << 13)
      : magnitude < 0x400u ? static_cast<float>(magnitude) * 5.9604644775390625e-8f  // 2^-24
                           : __uint_as_float((magnitude << 13) + kExponentShift);
  return __uint_as_float(sign | __float_as_uint(value));
}

inline uint16_t bfloat16_bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > kFloatInfinity) return kNan16;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat16_value(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

}  // namespace emulation

struct __half {
  uint16_t bits;
  __half() = default;
  __half(float x) : bits(emulation::half_bits(x)) {}
  operator float() const { return emulation::half_value(bits); }
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) : bits(emulation::bfloat16_bits(x)) {}
  operator float() const { return emulation::bfloat16_value(bits); }
};
struct alignas(4) __half2 {
  __half x, y;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float2 __half22float2(__half2 x) { return {x.x, x.y}; }
inline __half __ushort_as_half(unsigned short x) { return emulation::bit_cast<__half>(x); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }

inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {x.x, x.y}; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) {
  return emulation::bit_cast<__nv_bfloat16>(x);
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
