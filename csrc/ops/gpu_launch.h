// An operator's launch on a GPU, the same for all ways to start a kernel. Nothing here waits for
// the device, and the workspace comes from torch's caching allocator, so that every call can be
// captured into a graph.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../cuda/plan.h"

namespace rdk::ops {

using torch::stable::Tensor;

// Refuses, by name, what an operator does on the CPU and its kernel does not yet.
inline void refuse_without_kernel(const char* operator_name, const char* argument) {
  throw std::runtime_error(std::string("rdk::") + operator_name + ": " + argument +
                           " is given, but needs tensors on the CPU: the CUDA kernels do not have "
                           "it yet; leave it out, and change the logits before the call");
}

template <typename Params>
void require_kernel(const Params&) {}

inline void require_kernel(const char* operator_name, const Truncation& limits) {
  if (limits.top_k != nullptr) refuse_without_kernel(operator_name, "top_k");
  if (limits.top_p != nullptr) refuse_without_kernel(operator_name, "top_p");
  if (limits.min_p != nullptr) refuse_without_kernel(operator_name, "min_p");
}

inline void require_kernel(const RedistributeParams& params) {
  require_kernel("redistribute", params.truncation);
}

inline void require_kernel(const DraftParams& params) {
  require_kernel("draft", params.truncation);
}

inline void require_kernel(const VerifyTreeParams& params) {
  require_kernel("verify_tree", params.truncation);
  if (params.target.allowed.data != nullptr) refuse_without_kernel("verify_tree", "allowed");
}

// A Starter has machine(), and start(launch, workspace), which clears the first zeroed_bytes of the
// workspace and then starts the kernel.
template <typename Launch, typename Starter>
void launch_on(Starter& starter, const typename Launch::Params& params, const Tensor& on) {
  require_kernel(params);
  Launch launch{};
  launch.params = params;
  plan(starter.machine(), &launch);
  if (launch.shape.blocks == 0) return;
  // Freed on return, while the kernel may still run: the allocator gives the memory only to later
  // work on the same stream.
  const Tensor workspace = torch::stable::new_empty(
      on, std::vector<int64_t>{launch.shape.workspace_bytes}, torch::headeronly::ScalarType::Byte);
  place(workspace.mutable_data_ptr(), &launch);
  starter.start(launch, workspace.mutable_data_ptr());
}

}  // namespace rdk::ops
