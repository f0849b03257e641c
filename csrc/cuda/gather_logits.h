// gather_logits on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in the order of Dtype.
#define RDK_GATHER_LOGITS_KERNELS(kernel)                                         \
  kernel(gather_logits_kernel<float>), kernel(gather_logits_kernel<Float16Bits>), \
      kernel(gather_logits_kernel<BFloat16Bits>)

struct GatherLogitsLaunch {
  using Params = GatherLogitsParams;
  static constexpr int kMaxThreads = 256;  // of a block; fewer where that makes too few blocks
  static constexpr int kBlocks = 2;
  static constexpr int kParts = 4;  // warps that can share a token
  static constexpr int kSmallBlocks = kBlocks * kMaxThreads / (kParts * kWarp);
  static constexpr int kStaticSharedBytes = 4 * kParts * kWarp;
  Params params;
  LaunchShape shape;
  int splits;     // blocks that share a row of hidden states
  bool together;  // a token has a block of its own, otherwise a warp takes it

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.dtype); }
};

}  // namespace rdk
