// verify_tree on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, by Dtype: of fixed nodes for rows that are whole, then for rows that
// may be cut; of drawn and fixed nodes, whose rows may be cut, by token and by block.
#define RDK_VERIFY_TREE_KERNELS_FOR(kernel, rows)                                         \
  kernel(verify_tree_kernel<float, rows>), kernel(verify_tree_kernel<Float16Bits, rows>), \
      kernel(verify_tree_kernel<BFloat16Bits, rows>)
#define RDK_VERIFY_TREE_KERNELS(kernel)                                                 \
  RDK_VERIFY_TREE_KERNELS_FOR(kernel, Whole), RDK_VERIFY_TREE_KERNELS_FOR(kernel, Cut), \
      RDK_VERIFY_TREE_KERNELS_FOR(kernel, Drawn), RDK_VERIFY_TREE_KERNELS_FOR(kernel, DrawnBlock)

struct VerifyTreeLaunch {
  using Params = VerifyTreeParams;
  static constexpr int kThreads = 256;  // of a block
  static_assert(kResidualTries % (kThreads / kWarp) == 0, "warps share the tries evenly");
  static constexpr int kBlocks = 2;
  static constexpr bool kSharesPasses = false;
  static constexpr int kStaticSharedBytes = 992;  // at most: of drawn nodes by block
  Params params;
  LaunchShape shape;
  // As in VerifyLaunch. Of fixed nodes there are the target's sums alone.
  int slots;  // by block one for each depth, otherwise 1
  ChunkSum* target_chunks;
  ChunkSum* draft_chunks;
  float* spread_sums;
  float* residual_sums;
  float* factors;
  float* thresholds;

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int of_dtype = static_cast<int>(params.target.dtype);
    if (by_block()) return 3 * kDtypes + of_dtype;
    if (params.mixed()) return 2 * kDtypes + of_dtype;
    const bool whole = !params.sequences.truncation.given && params.target.allowed.data == nullptr;
    return whole ? of_dtype : kDtypes + of_dtype;
  }
  // Then even a block without a drawn node has words of its own.
  RDK_HOST_DEVICE bool by_block() const { return params.method == Method::kBlock; }
  RDK_HOST_DEVICE const Draft* looked_up(int64_t) const { return nullptr; }
};

}  // namespace rdk
