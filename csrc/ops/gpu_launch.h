// An operator's launch on a GPU, the same for all ways to start a kernel. Nothing here waits for
// the device, and the workspace comes from torch's caching allocator, so that every call can be
// captured into a graph.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <vector>

#include "../cuda/plan.h"

namespace rdk::ops {

using torch::stable::Tensor;

// A Starter has machine(), and start(launch, workspace), which clears the first zeroed_bytes of the
// workspace and then starts the kernel.
template <typename Launch, typename Starter>
void launch_on(Starter& starter, const typename Launch::Params& params, const Tensor& on) {
  Launch launch{};
  launch.params = params;
  const Machine machine = starter.machine();
  plan(machine, &launch);
  if (launch.shape.blocks == 0) return;
  // Freed on return, while the kernel may still run: the allocator gives the memory only to later
  // work on the same stream.
  const Tensor workspace = torch::stable::new_empty(
      on, std::vector<int64_t>{launch.shape.workspace_bytes}, torch::headeronly::ScalarType::Byte);
  place(workspace.mutable_data_ptr(), &launch);
  launch.shape.early = may_be_early(machine, launch.shape);
  starter.start(launch, workspace.mutable_data_ptr());
}

}  // namespace rdk::ops
