// Types and function attributes for code that CPU operators and CUDA kernels share.
#pragma once

#if defined(__CUDACC_RTC__)
using int32_t = int;
using int64_t = long long;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <stdint.h>
#endif

#if defined(__CUDACC__)
#define RDK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define RDK_HOST_DEVICE inline
#endif
#define RDK_DEVICE __device__ __forceinline__
