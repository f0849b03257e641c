// Built where nvcc and a torch with CUDA are. Nothing here waits for the device, and the workspace
// comes from torch's caching allocator, so that every call can be captured into a graph.

#include "backend_cuda.h"

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/shim_utils.h>

#include <stdexcept>
#include <string>

#include "../kernels/draft.h"
#include "../kernels/gather_logits.h"
#include "../kernels/redistribute.h"
#include "../kernels/step_seeds.h"
#include "../kernels/verify.h"

extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                             void** ret_stream);

namespace rdk::ops {
namespace {

void check_cuda(const char* name, const LaunchShape& shape, cudaError_t status) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(
      std::string("rdk::") + name + ": launching " + std::to_string(shape.blocks) + " blocks of " +
      std::to_string(shape.threads) + " threads with " + std::to_string(shape.shared_bytes) +
      " bytes of shared memory failed: " + cudaGetErrorString(status));
}

Machine machine_of(const char* name, int device) {
  int multiprocessors = 0;
  int shared_bytes = 0;
  check_cuda(name, {},
             cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  check_cuda(
      name, {},
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return {multiprocessors, shared_bytes};
}

template <typename Launch>
void launch_on(const char* name, const typename Launch::Params& params, const Tensor& on,
               void (*plan)(const Machine&, Launch*), void (*place)(void*, Launch*),
               cudaError_t (*start)(const Launch&, cudaStream_t)) {
  const auto device = on.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  void* current = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &current));
  const cudaStream_t stream = static_cast<cudaStream_t>(current);

  Launch launch{};
  launch.params = params;
  plan(machine_of(name, device), &launch);
  if (launch.shape.blocks == 0) return;
  // Given back on return, and handed out again only to work behind this launch on the same stream.
  const Tensor workspace = torch::stable::new_empty(
      on, std::vector<int64_t>{launch.shape.workspace_bytes}, torch::headeronly::ScalarType::Byte);
  place(workspace.mutable_data_ptr(), &launch);
  if (launch.shape.zeroed_bytes > 0) {
    check_cuda(name, launch.shape,
               cudaMemsetAsync(workspace.mutable_data_ptr(), 0, launch.shape.zeroed_bytes, stream));
  }
  check_cuda(name, launch.shape, start(launch, stream));
}

}  // namespace

void run_on_cuda(const RedistributeParams& params, const Tensor& on) {
  launch_on("redistribute", params, on, plan_redistribute, place_redistribute, launch_redistribute);
}

void run_on_cuda(const DraftParams& params, const Tensor& on) {
  launch_on("draft", params, on, plan_draft, place_draft, launch_draft);
}

void run_on_cuda(const VerifyParams& params, const Tensor& on) {
  launch_on("verify", params, on, plan_verify, place_verify, launch_verify);
}

void run_on_cuda(const GatherLogitsParams& params, const Tensor& on) {
  launch_on("gather_logits", params, on, plan_gather_logits, place_gather_logits,
            launch_gather_logits);
}

void run_on_cuda(const StepSeedsParams& params, const Tensor& on) {
  launch_on("step_seeds", params, on, plan_step_seeds, place_step_seeds, launch_step_seeds);
}

}  // namespace rdk::ops
