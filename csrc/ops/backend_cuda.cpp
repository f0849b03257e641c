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
  const bool has_attributes = has_code_of_9_0();
  return {multiprocessors, shared_bytes, has_attributes ? kMostCluster : 1,
          environment().early_launches && has_attributes};
}

// Whether kernels are compiled for compute capability 9.0 or later, from which on launches have
// clusters and may be early. Asked once for each device.
bool CudaStarter::has_code_of_9_0() const {
  static std::array<std::atomic<int>, 64> known{};  // 0: not yet
  std::atomic<int>* kept = device_ < 64 ? &known[device_] : nullptr;
  int compiled = kept != nullptr ? kept->load() : 0;
  if (compiled == 0) check(compiled_for(&compiled), {});
  if (kept != nullptr) *kept = compiled;
  return compiled >= 90;
}

void CudaStarter::clear_tickets(const LaunchShape& shape, void* workspace) const {
  if (!clears_tickets(shape)) return;
  check(cudaMemsetAsync(workspace, 0, shape.ticket_bytes, stream_), shape);
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
