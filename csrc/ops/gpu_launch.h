// An operator's launch on a GPU, the same for all ways to start a kernel. Nothing here waits for
// the device, and the workspace comes from torch's caching allocator, so that every call can be
// captured into a graph.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <vector>

#include "../common/philox.h"
#include "../cuda/plan.h"

namespace rdk::ops {

using torch::stable::Tensor;

// LaunchShape::stamp, never 0: words of a Philox stream whose key is this process's own.
inline uint64_t next_stamp() {
  static const int64_t key =
      static_cast<int64_t>(uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  static std::atomic<int64_t> count{0};
  for (;;) {
    const uint64_t stamp = static_cast<uint64_t>(step_key(key, count++, 0)) & ~uint64_t{0xffff};
    if (stamp != 0) return stamp;
  }
}

// A Starter has machine(), and start(launch, workspace, memory).
template <typename Launch, typename Starter>
void launch_on(const Starter& starter, const typename Launch::Params& params, const Tensor& on) {
  Launch launch{};
  launch.params = params;
  const Machine machine = starter.machine();
  const Workspace workspace = plan(machine, &launch);
  if (launch.shape.blocks == 0) return;
  // Freed on return, while the kernel may still run: the allocator gives the memory only to later
  // work on the same stream.
  const Tensor memory = torch::stable::new_empty(on, std::vector<int64_t>{workspace.bytes()},
                                                 torch::headeronly::ScalarType::Byte);
  workspace.place(memory.mutable_data_ptr());
  launch.shape.early = machine.early && !clears_tickets(launch.shape);  // not behind a memset
  launch.shape.stamp = next_stamp();
  starter.start(launch, workspace, memory.mutable_data_ptr());
}

}  // namespace rdk::ops
