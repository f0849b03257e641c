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
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 4;
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;
  int splits;  // blocks that share a row

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.draft.dtype); }
};

}  // namespace rdk
