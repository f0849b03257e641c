// How a plan becomes a launch.
#pragma once

#include "device.cuh"
#include "launch.h"

#if defined(RDK_HAS_HOST)

#include <initializer_list>
#include <mutex>
#include <set>
#include <utility>

#include "plan.h"
#include "start.h"

namespace rdk {

// Allows a kernel so much dynamic shared memory on the current device, once: what another thread
// launches must not find it changed.
inline cudaError_t allow_shared_bytes(const void* kernel, int64_t bytes) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  if (allowed.count({kernel, device}) > 0) return cudaSuccess;
  const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(bytes));
  if (set == cudaSuccess) allowed.insert({kernel, device});
  return set;
}

// One launch of a kernel that takes its whole launch struct by value.
template <typename Launch>
cudaError_t launch_kernel(void (*kernel)(const Launch), const Launch& launch, cudaStream_t stream) {
  const LaunchShape& shape = launch.shape;
  if (shape.blocks == 0) return cudaSuccess;
  const auto* function = reinterpret_cast<const void*>(kernel);
  introduce(function, kernel_name(launch), Launch::kStaticSharedBytes);
  if (shape.allowed_bytes > 0) {
    const cudaError_t status = allow_shared_bytes(function, shape.allowed_bytes);
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.early != 0) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, launch);
}

// Defines what starts an operator's kernels: the one of RDK_NAME_KERNELS that the launch needs.
#define RDK_FUNCTION(...) __VA_ARGS__
#define RDK_START(Name, NAME)                                               \
  cudaError_t start(const Name##Launch& launch, cudaStream_t stream) {      \
    const std::initializer_list<void (*)(const Name##Launch)> kernels = {   \
        RDK_##NAME##_KERNELS(RDK_FUNCTION)};                                \
    return launch_kernel(kernels.begin()[launch.kernel()], launch, stream); \
  }

// Defines compiled_for by a kernel, which is as good as any other.
#define RDK_COMPILED_FOR(...)                                                   \
  cudaError_t compiled_for(int* capability) {                                   \
    cudaFuncAttributes attributes{};                                            \
    const cudaError_t status = cudaFuncGetAttributes(&attributes, __VA_ARGS__); \
    *capability = attributes.ptxVersion;                                        \
    return status;                                                              \
  }

}  // namespace rdk

#else
#define RDK_START(Name, NAME)
#define RDK_COMPILED_FOR(...)
#endif
