// verify on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

// The kernel's instantiations, in three lists: for rows that are whole, for rows that may be cut,
// which have log-probabilities too, and by block, where rows may be cut. Each by the target's
// Dtype, whose logits are most of the bytes, so they are always read by vectors. Where rows are
// whole, those for a drafter of the same dtype come first, and it is read by vectors, too.
#define RDK_VERIFY_KERNELS_FOR(kernel, rows)              \
  kernel(verify_kernel<float, AnyDtype, rows>),           \
      kernel(verify_kernel<Float16Bits, AnyDtype, rows>), \
      kernel(verify_kernel<BFloat16Bits, AnyDtype, rows>)
#define RDK_VERIFY_KERNELS(kernel)                                                \
  kernel(verify_kernel<float, float, Whole>),                                     \
      kernel(verify_kernel<Float16Bits, Float16Bits, Whole>),                     \
      kernel(verify_kernel<BFloat16Bits, BFloat16Bits, Whole>),                   \
      RDK_VERIFY_KERNELS_FOR(kernel, Whole), RDK_VERIFY_KERNELS_FOR(kernel, Cut), \
      RDK_VERIFY_KERNELS_FOR(kernel, Block)

struct VerifyLaunch {
  using Params = VerifyParams;
  static constexpr int kThreads = 256;  // of a block
  static_assert(kResidualTries % (kThreads / kWarp) == 0, "warps share the tries evenly");
  static constexpr int kBlocks = 2;
  static constexpr bool kSharesPasses = true;
  static constexpr int kSplitsOfScout = 16;
  static constexpr int kStaticSharedBytes = 960;
  Params params;
  LaunchShape shape;
  // Blocks that share a sequence, each a part of all its rows, of which the last one decides; or 1,
  // which reads a row, decides, and goes on until a rejection. Tokens are the same.
  int splits;
  uint64_t* tickets;  // [B]; none where splits is 1
  // Sums are kept by sequence and step, not by row: offsets out of order can give a row to two
  // sequences, each with a temperature of its own.
  int slots;                // steps of a sequence that are kept at once
  ChunkSum* target_chunks;  // [B, slots, chunks of V_t]
  ChunkSum* draft_chunks;   // [B, slots, chunks of V_d and C]; none where stats are given
  float* spread_sums;       // [B, slots, R, chunks]
  float* residual_sums;     // [B, chunks of V_t]
  ChunkSum* raw_chunks;     // [B, chunks of V_t]; none where no raw log-probabilities are asked for
  float* factors;           // [B, slots], c of each prefix; none but by block
  float* thresholds;        // [B, slots], of rows that are cut; none but by block
  Draft* drafts;            // [B, slots]; none if it does not look ahead
  // Direct passes that blocks share; none by block.
  uint64_t* next;        // [B]
  uint64_t* done;        // [B], batches that have been summed, as tickets count
  unsigned char* posts;  // [B, kPostBytes]
  int batch;             // chunks that a block takes at once, an even number
  int at_once;           // blocks of the launch that run at once, at least

  RDK_HOST_DEVICE int kernel() const {
    constexpr int kDtypes = 3;
    const int target = static_cast<int>(params.target.dtype);
    if (by_block()) return 3 * kDtypes + target;
    if (!whole()) return 2 * kDtypes + target;
    return params.draft.dtype == params.target.dtype ? target : kDtypes + target;
  }
  RDK_HOST_DEVICE bool by_block() const { return params.method == Method::kBlock; }
  // Whether drafts are looked up while rows are summed, which needs no sums of their own rows.
  RDK_HOST_DEVICE bool looks_ahead() const {
    return !by_block() && params.draft_rows.stats != nullptr;
  }
  RDK_HOST_DEVICE const Draft* looked_up(int64_t slot) const {
    return looks_ahead() ? drafts + slot : nullptr;
  }
  // Whether a block of its own looks them up: among many it costs the others less than a warp of
  // each that comes later.
  RDK_HOST_DEVICE bool has_scout() const { return looks_ahead() && splits >= kSplitsOfScout; }
  // Whether the call has nothing that changes a row, or that asks for more than tokens.
  RDK_HOST_DEVICE bool whole() const {
    return !params.sequences.truncation.given && params.target.allowed.data == nullptr &&
           params.logprobs_of == Logprobs::kNone &&
           !(params.draft_rows.stats != nullptr &&
             params.draft_rows.stats_width > 2 + params.affinity.rank);
  }
};

}  // namespace rdk
