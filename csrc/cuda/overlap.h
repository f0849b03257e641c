// overlap on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, by the target's Dtype: first for a drafter of the same one, which is
// read by vectors, too.
#define RDK_OVERLAP_KERNELS(kernel)                                                                \
  kernel(overlap_kernel<float, float>), kernel(overlap_kernel<Float16Bits, Float16Bits>),          \
      kernel(overlap_kernel<BFloat16Bits, BFloat16Bits>), kernel(overlap_kernel<float, AnyDtype>), \
      kernel(overlap_kernel<Float16Bits, AnyDtype>),                                               \
      kernel(overlap_kernel<BFloat16Bits, AnyDtype>)

struct OverlapLaunch {
  using Params = OverlapParams;
  static constexpr int kThreads = 768;  // of a block
  static constexpr int kBlocks = 1;
  static constexpr int kStaticSharedBytes = 624;
  Params params;
  LaunchShape shape;
  bool shared_weights;      // the row's exp(z - max) is kept in shared memory
  ChunkSum* target_chunks;  // [rows, chunks of V_t]
  ChunkSum* draft_chunks;   // [rows, chunks of V_d and C]
  float* spread_sums;       // [rows, R, chunks of V_d and C]

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int target = static_cast<int>(params.target.dtype);
    return params.draft.dtype == params.target.dtype ? target : kDtypes + target;
  }
};

}  // namespace rdk
