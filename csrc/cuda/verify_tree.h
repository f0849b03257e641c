// verify_tree on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, by Dtype.
#define RDK_VERIFY_TREE_KERNELS(kernel)                                       \
  kernel(verify_tree_kernel<float>), kernel(verify_tree_kernel<Float16Bits>), \
      kernel(verify_tree_kernel<BFloat16Bits>)

struct VerifyTreeLaunch {
  using Params = VerifyTreeParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 16;
  Params params;
  LaunchShape shape;
  ChunkSum* chunks;  // [B, chunks of V_t], of the node that the walk is at

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.target.dtype); }
};

}  // namespace rdk
