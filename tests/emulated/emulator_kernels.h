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

// Each thread stores a partial sum; the last block to take a ticket, or the first block of a
// cluster, adds them all up. Wrong are those without a fence, with the fence of one thread which
// does not cover the others' sums, and with a ticket that may be taken before the others' fences,
// or before its own; and a cluster with barriers of blocks alone.
#define EMULATOR_PUBLICATIONS(each)                                                             \
  each(fence_after_barrier), each(fence_by_every_thread), each(fence_by_warps), each(no_fence), \
      each(no_barrier_before_fence), each(no_barrier_after_fences), each(ticket_first),         \
      each(cluster), each(cluster_of_lone_blocks)
#define EMULATOR_NAME(name) name
enum class Publication : int { EMULATOR_PUBLICATIONS(EMULATOR_NAME) };

struct ReductionParams {
  const int* values;
  int* partials;
  unsigned* ticket;
  int* sum;
  int size;
  Publication publication;
};
// Of a cluster all blocks are one.
void launch_reduction(const ReductionParams& params, int blocks, int threads);

#define EMULATOR_MISUSES(each)                                                                     \
  each(barrier_in_branch), each(cluster_barrier_in_branch), each(barriers_of_two_branches),        \
      each(return_before_barrier), each(shuffle_without_a_lane),                                   \
      each(shuffle_names_returned_lane), each(shuffle_outside_mask),                               \
      each(shuffle_reads_lane_outside_mask), each(shuffle_against_ballot),                         \
      each(barrier_against_shuffle), each(circular_wait), each(uninitialised_static),              \
      each(uninitialised_dynamic), each(uninitialised_in_template), each(dynamic_overrun),         \
      each(static_overrun), each(global_overrun), each(misaligned), each(signed_overflow),         \
      each(throws), each(mixed_stores), each(load_against_store), each(store_before_shuffle),      \
      each(weak_load_of_a_counter), each(copy_not_waited_for),                                     \
      each(copy_of_the_last_group_not_waited_for), each(return_before_copy), each(copy_to_global), \
      each(copy_of_17_bytes), each(early_without_a_wait), each(early_copy_before_the_wait),        \
      each(none)
enum class Misuse : int { EMULATOR_MISUSES(EMULATOR_NAME) };

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

struct PrimitivesParams {
  unsigned* out;  // one row a primitive, one column a thread
};
void launch_primitives(const PrimitivesParams& params, int threads);
