// CUDA's types and number intrinsics for g++: those that the kernels use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
using cudaStream_t = struct CUstream_st*;

enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
struct cudaFuncAttributes {
  int ptxVersion;
};

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (bits & 31));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  static_assert(std::is_integral_v<A> && std::is_integral_v<B>);
  using T = std::common_type_t<A, B>;
  return std::min(static_cast<T>(a), static_cast<T>(b));
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  static_assert(std::is_integral_v<A> && std::is_integral_v<B>);
  using T = std::common_type_t<A, B>;
  return std::max(static_cast<T>(a), static_cast<T>(b));
}
