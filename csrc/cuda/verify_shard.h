// verify_shard on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, by the target's Dtype. The drafter is read element by element.
#define RDK_VERIFY_SHARD_KERNELS(kernel)                                        \
  kernel(verify_shard_kernel<float>), kernel(verify_shard_kernel<Float16Bits>), \
      kernel(verify_shard_kernel<BFloat16Bits>)

struct VerifyShardLaunch {
  using Params = VerifyShardParams;
  static constexpr int kThreads = 256;  // of a block
  static_assert(kResidualTries % (kThreads / kWarp) == 0, "warps share the tries evenly");
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 960;
  Params params;
  LaunchShape shape;

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.target.dtype); }
};

}  // namespace rdk
