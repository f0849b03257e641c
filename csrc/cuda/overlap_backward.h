// overlap_backward on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in the order of Dtype.
#define RDK_OVERLAP_BACKWARD_KERNELS(kernel)                                            \
  kernel(overlap_backward_kernel<float>), kernel(overlap_backward_kernel<Float16Bits>), \
      kernel(overlap_backward_kernel<BFloat16Bits>)

struct OverlapBackwardLaunch {
  using Params = OverlapBackwardParams;
  static constexpr int kThreads = 512;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kGroup = 4;      // rows of a block
  static constexpr int kWindow = 1024;  // times 32 columns, between which the block waits
  static constexpr int kStaticSharedBytes = 4160;
  Params params;
  LaunchShape shape;
  bool shared_below;  // the rows' bits are kept in shared memory
  int splits;         // blocks that share a group of rows

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.draft.dtype); }
};

}  // namespace rdk
