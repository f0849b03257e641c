// Built where nvcc and a torch with CUDA are.

#include "backend_cuda.h"

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

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
  return {multiprocessors, shared_bytes};
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
