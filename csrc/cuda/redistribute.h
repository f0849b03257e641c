// redistribute on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in the order of Dtype: for rows that are whole, then for rows that
// may be cut.
#define RDK_REDISTRIBUTE_KERNELS_FOR(kernel, rows)                                          \
  kernel(redistribute_kernel<float, rows>), kernel(redistribute_kernel<Float16Bits, rows>), \
      kernel(redistribute_kernel<BFloat16Bits, rows>)
#define RDK_REDISTRIBUTE_KERNELS(kernel) \
  RDK_REDISTRIBUTE_KERNELS_FOR(kernel, Whole), RDK_REDISTRIBUTE_KERNELS_FOR(kernel, Cut)

struct RedistributeLaunch {
  using Params = RedistributeParams;
  static constexpr int kThreads = 512;  // of a block
  static constexpr int kBlocks = 1;
  static constexpr int kStaticSharedBytes = 144;
  static constexpr int kMaxGroup = 4;  // rows
  static constexpr int kTokens = 8;    // of a lane at once; tiles are multiples of it
  // Of a block whose rows may be cut, before its other dynamic shared memory.
  static constexpr int kCutBytes = kThresholdBytes + kMaxGroup * 8 + 48;
  Params params;
  LaunchShape shape;
  int tiles;            // blocks that share a group of rows
  int tile;             // target tokens of each
  int group;            // rows that a block takes in one pass over the sparse structure
  bool shared_weights;  // exp(z - max) of the group's rows is kept in shared memory
  ChunkSum* chunks;     // [blocks, group, chunks]
  float* spread_sums;   // [blocks, group, R, chunks]

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int of_dtype = static_cast<int>(params.draft.dtype);
    return params.truncation.given ? kDtypes + of_dtype : of_dtype;
  }
  // Of a row's shared weights: whole vectors.
  RDK_HOST_DEVICE int64_t weights_stride() const { return (params.draft.draft_size + 3) / 4 * 4; }
};

}  // namespace rdk
