// sum_shard on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in the order of Dtype.
#define RDK_SUM_SHARD_KERNELS(kernel)                                     \
  kernel(sum_shard_kernel<float>), kernel(sum_shard_kernel<Float16Bits>), \
      kernel(sum_shard_kernel<BFloat16Bits>)

struct SumShardLaunch {
  using Params = SumShardParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;
  int splits;  // blocks that share a row

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.target.dtype); }
};

}  // namespace rdk
