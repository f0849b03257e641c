// Marks what the CPU operators and the CUDA kernels share.
#pragma once

#if defined(__CUDACC__)
#define RDK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define RDK_HOST_DEVICE inline
#endif
