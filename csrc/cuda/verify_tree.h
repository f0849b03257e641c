// verify_tree on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, by Dtype: for rows that are whole, then for rows that may be cut.
#define RDK_VERIFY_TREE_KERNELS_FOR(kernel, rows)                                         \
  kernel(verify_tree_kernel<float, rows>), kernel(verify_tree_kernel<Float16Bits, rows>), \
      kernel(verify_tree_kernel<BFloat16Bits, rows>)
#define RDK_VERIFY_TREE_KERNELS(kernel) \
  RDK_VERIFY_TREE_KERNELS_FOR(kernel, Whole), RDK_VERIFY_TREE_KERNELS_FOR(kernel, Cut)

struct VerifyTreeLaunch {
  using Params = VerifyTreeParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 16;
  Params params;
  LaunchShape shape;
  ChunkSum* chunks;  // [B, chunks of V_t], of the node that the walk is at

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int of_dtype = static_cast<int>(params.target.dtype);
    const bool whole = !params.sequences.truncation.given && params.target.allowed.data == nullptr;
    return whole ? of_dtype : kDtypes + of_dtype;
  }
};

}  // namespace rdk
