// draft on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in the order of Dtype: for rows that are whole, then for rows that
// may be cut.
#define RDK_DRAFT_KERNELS_FOR(kernel, rows)                                   \
  kernel(draft_kernel<float, rows>), kernel(draft_kernel<Float16Bits, rows>), \
      kernel(draft_kernel<BFloat16Bits, rows>)
#define RDK_DRAFT_KERNELS(kernel) \
  RDK_DRAFT_KERNELS_FOR(kernel, Whole), RDK_DRAFT_KERNELS_FOR(kernel, Cut)

struct DraftLaunch {
  using Params = DraftParams;
  static constexpr int kMaxThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kSmallThreads = 64;  // of a block where several share a row
  static constexpr int kSmallBlocks = 4;    // of these for a multiprocessor; 8 would fit
  static constexpr int kStaticSharedBytes = 3088;
  Params params;
  LaunchShape shape;
  int splits;          // blocks that share a row
  bool holds;          // they hold its chunk sums in shared memory (row_sums.cuh)
  bool plain;          // and all chunks are whole (cut.cuh)
  uint64_t* tickets;   // [rows]; none if a row's blocks are a cluster
  ChunkSum* chunks;    // [rows, chunks]
  float* spread_sums;  // [rows, R, chunks]

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int of_dtype = static_cast<int>(params.draft.dtype);
    return params.truncation.given ? kDtypes + of_dtype : of_dtype;
  }
};

}  // namespace rdk
