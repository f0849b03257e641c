// The order of work in verify, as seen by a block: which share of it comes next, and whose sums are
// complete. In a queue the first step of all sequences comes first, then the second, so that few
// rows are read after a rejection. Each row is in parts, so that all blocks work on few sequences.
//
// No block waits for another. A step is decided by whoever comes last: the blocks that sum its
// parts each take one of its tickets, and so does the block that has accepted the step before. Thus
// a sequence is decided in order, by one block at a time, whatever order its sums come in. Behind
// its end nobody takes that ticket. That a sequence has ended is a hint, for whose sake parts are
// skipped: a block that does not see it yet makes sums that nobody uses.
#pragma once

#include "verify_position.cuh"

namespace rdk {

// What a block sums: a part of the rows of a sequence, from this step on.
struct Share {
  int64_t index;  // of the sequence
  int first;
  int part;
};

// Blocks that share a sequence are neighbours; of a queue all parts of a step are.
__device__ __forceinline__ Share share_of(const VerifyLaunch& launch, unsigned number) {
  const unsigned splits = static_cast<unsigned>(launch.splits);
  const unsigned sequences = static_cast<unsigned>(launch.params.sequences.count);
  const unsigned row = number / splits;
  const unsigned step = row / sequences;
  return {row - step * sequences, static_cast<int>(step), static_cast<int>(number - row * splits)};
}

__device__ __forceinline__ unsigned items_of(const VerifyLaunch& launch) {
  return static_cast<unsigned>(launch.params.sequences.count * launch.slots * launch.splits);
}

// By a block, into shared memory: false if there is none. The first items are those of the blocks'
// own numbers.
__device__ __forceinline__ bool draw_item(const VerifyLaunch& launch, unsigned* number) {
  if (launch.order != VerifyOrder::kQueue) return false;
  if (threadIdx.x == 0) *number = gridDim.x + atomicAdd(&launch.queue->drawn, 1u);
  __syncthreads();
  return *number < items_of(launch);
}

// By one warp.
__device__ __forceinline__ void load_share(const VerifyLaunch& launch, unsigned number,
                                           Share* share, Sequence* sequence) {
  const Share found = share_of(launch, number);
  const bool ended =
      launch.order == VerifyOrder::kQueue && relaxed_load(&launch.ended[found.index]) != 0;
  load_sequence(launch.params, found.index, sequence);
  if (lane_index() != 0) return;
  *share = found;
  if (ended) sequence->count = -1;  // nothing is left to do
}

// By a block. The end of the last sequence empties the queue, which has as many steps as max_draft
// allows, whatever the drafts are.
__device__ __forceinline__ void end_sequence(const VerifyLaunch& launch, int64_t sequence) {
  if (launch.order != VerifyOrder::kQueue || threadIdx.x != 0) return;
  atomicAdd(&launch.ended[sequence], 1u);
  const unsigned ended = atomicAdd(&launch.queue->ended, 1u) + 1;
  if (ended == launch.params.sequences.count) atomicAdd(&launch.queue->drawn, items_of(launch));
}

__device__ __forceinline__ unsigned* ticket_of(const VerifyLaunch& launch, int64_t sequence,
                                               int step) {
  const bool queued = launch.order == VerifyOrder::kQueue;
  return launch.tickets + (queued ? sequence * launch.slots + step : sequence);
}

// How many are taken: one for each part, and one more for the step before, if there is one.
__device__ __forceinline__ int tickets_of(const VerifyLaunch& launch, int step) {
  return launch.splits + (step > 0 ? 1 : 0);
}

// By the block that may decide a step: the last of those behind it that have their sums already,
// so that they are decided together. Only this block takes the ticket that each of them lacks.
__device__ __forceinline__ int last_summed(const VerifyLaunch& launch, const Sequence& sequence,
                                           int step) {
  __shared__ int last;
  if (warp_index() == 0) {
    const int behind = step + 1 + lane_index();
    const bool summed = lane_index() + 1 < kWarp && behind <= sequence.count &&
                        relaxed_load(ticket_of(launch, sequence.index, behind)) ==
                            static_cast<unsigned>(launch.splits);
    const unsigned missing = ~__ballot_sync(kAllLanes, summed);
    __threadfence();  // no load of a sum before that of its ticket
    if (lane_index() == 0) last = step + __ffs(missing) - 1;
  }
  __syncthreads();
  return last;
}

}  // namespace rdk
