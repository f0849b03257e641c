// verify on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations: by Dtype where target and drafter have the same, then by the
// target's where the drafter has another. The target's logits are most of the bytes, so they are
// always read by vectors. First those for rows that are whole, then those for rows that may be cut,
// which have log-probabilities too.
#define RDK_VERIFY_KERNELS_FOR(kernel, rows)                   \
  kernel(verify_kernel<float, float, rows>),                   \
      kernel(verify_kernel<Float16Bits, Float16Bits, rows>),   \
      kernel(verify_kernel<BFloat16Bits, BFloat16Bits, rows>), \
      kernel(verify_kernel<float, AnyDtype, rows>),            \
      kernel(verify_kernel<Float16Bits, AnyDtype, rows>),      \
      kernel(verify_kernel<BFloat16Bits, AnyDtype, rows>)
#define RDK_VERIFY_KERNELS(kernel) \
  RDK_VERIFY_KERNELS_FOR(kernel, Whole), RDK_VERIFY_KERNELS_FOR(kernel, Cut)

struct VerifyLaunch {
  using Params = VerifyParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 736;
  Params params;
  LaunchShape shape;
  int splits;         // blocks that share a sequence; 1: positions in order to the first rejection
  unsigned* tickets;  // [B], zero at the start
  // Sums are kept by sequence and step, not by row: offsets out of order can give a row to two
  // sequences, each with a temperature of its own.
  int slots;                // steps of a sequence that are kept at once
  ChunkSum* target_chunks;  // [B, slots, chunks of V_t]
  ChunkSum* draft_chunks;   // [B, slots, chunks of V_d and C]; none where stats are given
  float* spread_sums;       // [B, slots, R, chunks]
  float* residual_sums;     // [B, chunks of V_t]
  ChunkSum* raw_chunks;     // [B, chunks of V_t]; none where no raw log-probabilities are asked for

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int target = static_cast<int>(params.target_dtype);
    const int of_dtypes = params.draft.dtype == params.target_dtype ? target : kDtypes + target;
    return whole() ? of_dtypes : 2 * kDtypes + of_dtypes;
  }
  // Whether the call has nothing that changes a row, or that asks for more than tokens.
  RDK_HOST_DEVICE bool whole() const {
    return !params.truncation.given && params.allowed.data == nullptr &&
           params.logprobs_of == Logprobs::kNone &&
           !(params.draft_stats != nullptr && params.draft_stats_width > 2 + params.affinity.rank);
  }
};

}  // namespace rdk
