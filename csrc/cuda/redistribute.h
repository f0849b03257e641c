// redistribute on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in the order of Dtype.
#define RDK_REDISTRIBUTE_KERNELS(kernel)                                        \
  kernel(redistribute_kernel<float>), kernel(redistribute_kernel<Float16Bits>), \
      kernel(redistribute_kernel<BFloat16Bits>)

struct RedistributeLaunch {
  using Params = RedistributeParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;     // where shared memory has room for as many
  static constexpr int kStaticSharedBytes = 128;
  static constexpr int kMaxGroup = 4;  // rows
  Params params;
  LaunchShape shape;
  int tiles;            // blocks that share a group of rows
  int tile;             // target tokens of each
  int group;            // rows that a block takes in one pass over the sparse structure
  bool shared_weights;  // exp(z - max) of the group's rows fits into shared memory
  ChunkSum* chunks;     // [blocks, chunks]
  float* spread_sums;   // [blocks, R, chunks]

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.draft.dtype); }
};

}  // namespace rdk
