// Small kernels to try the emulator on: a few that are right, and one bug for each thing that it
// must notice.
#pragma once

#include <cstddef>
#include <cstdint>

struct SoftmaxParams {
  const float* logits;
  float* probs;
  int columns;
};
// With all barriers, or without the one between a write and its read.
void launch_softmax(const SoftmaxParams& params, int rows, int threads, bool all_barriers);
// One thread a column. With all barriers, or without the one between a read and the next write.
void launch_shared_softmax(const SoftmaxParams& params, int rows, bool all_barriers);

struct ScanParams {
  const int* values;
  int* sums;
  int size;
};
void launch_warp_scan(const ScanParams& params, int blocks, int threads);

// Each thread stores a partial sum; the last block to take a ticket adds them all up.
enum class Publication : int {
  kFenceAfterBarrier,
  kFenceByEveryThread,
  kFenceByWarps,  // of lane 0, after __syncwarp
  // Wrong ones.
  kNoFence,
  kNoBarrierBeforeFence,  // the fence of one thread does not cover the others' partials
  kNoBarrierAfterFences,  // the ticket may be taken before the others' fences
  kTicketFirst,
};
struct ReductionParams {
  const int* values;
  int* partials;
  unsigned* ticket;
  int* sum;
  int size;
  Publication publication;
};
void launch_reduction(const ReductionParams& params, int blocks, int threads);

enum class Misuse : int {
  kBarrierInBranch,
  kBarriersOfTwoBranches,
  kReturnBeforeBarrier,
  kShuffleWithoutALane,
  kShuffleNamesReturnedLane,
  kShuffleOutsideMask,
  kShuffleReadsLaneOutsideMask,
  kShuffleAgainstBallot,
  kBarrierAgainstShuffle,
  kCircularWait,
  kUninitialisedStatic,
  kUninitialisedDynamic,
  kUninitialisedInTemplate,
  kDynamicOverrun,
  kStaticOverrun,
  kGlobalOverrun,
  kMisaligned,
  kSignedOverflow,
  kThrows,
  kMixedStores,
  kCopyNotWaitedFor,
  kCopyOfTheLastGroupNotWaitedFor,
  kReturnBeforeCopy,
  kCopyToGlobal,
  kNone,
};
struct MisuseParams {
  Misuse misuse;
  float* out;
};

// The kernel counts as one of 128 static bytes; allowed_bytes is set as its attribute if not 0.
void launch_misuse(const MisuseParams& params, int blocks, int threads, size_t dynamic_bytes,
                   int allowed_bytes);
int live_guards();  // objects on the stacks of unfinished threads

struct OrderParams {
  unsigned* counter;
  unsigned* order;  // when each thread came
};
void launch_order(const OrderParams& params, int blocks, int threads);

struct ConversionParams {
  const float* values;
  uint16_t* halves;
  uint16_t* bfloat16s;
  float* halves_back;
  float* bfloat16s_back;
};
void launch_conversion(const ConversionParams& params, int blocks, int threads);

struct PrimitivesParams {
  unsigned* out;  // one row a primitive, one column a thread
};
void launch_primitives(const PrimitivesParams& params, int threads);
