// CUDA's vector types, error codes and number intrinsics for g++.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define EMULATION_VECTOR_TYPES(scalar, name, align2, align4)                        \
  struct name##1 { scalar x; };                                                     \
  struct alignas(align2) name##2 { scalar x, y; };                                  \
  struct name##3 { scalar x, y, z; };                                               \
  struct alignas(align4) name##4 { scalar x, y, z, w; };                            \
  inline name##1 make_##name##1(scalar x) { return {x}; }                           \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }              \
  inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; } \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

EMULATION_VECTOR_TYPES(unsigned char, uchar, 2, 4)
EMULATION_VECTOR_TYPES(short, short, 4, 8)
EMULATION_VECTOR_TYPES(unsigned short, ushort, 4, 8)
EMULATION_VECTOR_TYPES(int, int, 8, 16)
EMULATION_VECTOR_TYPES(unsigned, uint, 8, 16)
EMULATION_VECTOR_TYPES(float, float, 8, 16)
EMULATION_VECTOR_TYPES(double, double, 16, 16)
EMULATION_VECTOR_TYPES(long long, longlong, 16, 16)
EMULATION_VECTOR_TYPES(unsigned long long, ulonglong, 16, 16)
#undef EMULATION_VECTOR_TYPES

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = struct CUstream_st*;

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess             ? "no error"
         : error == cudaErrorInvalidValue ? "invalid argument"
                                          : "invalid configuration argument";
}
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t) {
  std::memset(address, value, bytes);
  return cudaSuccess;
}

namespace emulation {

template <typename To, typename From>
To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace emulation

inline unsigned __float_as_uint(float x) { return emulation::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return emulation::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bit_cast<float>(x); }
inline float __int_as_float(int x) { return emulation::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emulation::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulation::bit_cast<double>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }

// More exact than CUDA's, which are within a few units in the last place.
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __saturatef(float x) { return x > 0.0f ? std::min(x, 1.0f) : 0.0f; }

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  return std::min(static_cast<T>(a), static_cast<T>(b));
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  return std::max(static_cast<T>(a), static_cast<T>(b));
}
