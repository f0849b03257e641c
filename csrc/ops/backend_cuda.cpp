// Built where nvcc and a torch with CUDA are.

#include "backend_cuda.h"

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                             void** ret_stream);

namespace rdk::ops {

CudaStarter::CudaStarter(const char* operator_name, int32_t device)
    : operator_name_(operator_name), device_(device) {
  void* current = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &current));
  stream_ = static_cast<cudaStream_t>(current);
}

Machine CudaStarter::machine() const {
  int multiprocessors = 0;
  int shared_bytes = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_), {});
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_),
        {});
  return {multiprocessors, shared_bytes, most_cluster_blocks()};
}

// Asked once for each device.
int64_t CudaStarter::most_cluster_blocks() const {
  static std::array<std::atomic<int64_t>, 64> known{};  // 0: not yet
  std::atomic<int64_t>* kept = device_ < 64 ? &known[device_] : nullptr;
  if (kept != nullptr && *kept != 0) return *kept;
  int found = 0;
  int compiled = 0;
  check(cudaDeviceGetAttribute(&found, cudaDevAttrClusterLaunch, device_), {});
  if (found != 0) check(compiled_for(&compiled), {});
  const int64_t most = compiled >= 90 ? kMostCluster : 1;
  if (kept != nullptr) *kept = most;
  return most;
}

void CudaStarter::clear(const LaunchShape& shape, void* workspace) const {
  if (shape.zeroed_bytes == 0) return;
  check(cudaMemsetAsync(workspace, 0, shape.zeroed_bytes, stream_), shape);
}

void CudaStarter::check(cudaError_t status, const LaunchShape& shape) const {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("rdk::") + operator_name_ + ": launching " +
                           std::to_string(shape.blocks) + " blocks of " +
                           std::to_string(shape.threads) + " threads with " +
                           std::to_string(shape.shared_bytes) +
                           " bytes of shared memory failed: " + cudaGetErrorString(status));
}

}  // namespace rdk::ops
