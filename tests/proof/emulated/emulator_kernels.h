// A kernel with one bug for each thing that a GPU leaves undefined, and one with every collective.
#pragma once

#include <cstddef>
#include <cstdint>

#define EMULATOR_NAME(name) name
#define EMULATOR_MISUSES(each)                                                              \
  each(barrier_in_branch), each(cluster_barrier_in_branch), each(barriers_of_two_branches), \
      each(return_before_barrier), each(shuffle_without_a_lane),                            \
      each(shuffle_names_returned_lane), each(shuffle_outside_mask),                        \
      each(shuffle_reads_lane_outside_mask), each(shuffle_against_ballot),                  \
      each(barrier_against_shuffle), each(circular_wait), each(dynamic_overrun),            \
      each(static_overrun), each(global_overrun), each(misaligned), each(signed_overflow),  \
      each(mixed_stores), each(load_against_store), each(store_before_shuffle),             \
      each(load_before_shuffle), each(weak_load_of_a_counter), each(return_before_copy),    \
      each(copy_to_global), each(early_without_a_wait), each(early_copy_before_the_wait),   \
      EMULATOR_CLUSTER_MISUSES(each), each(none)
// By clusters of two blocks.
#define EMULATOR_CLUSTER_MISUSES(each)                                                          \
  each(store_before_a_block_runs), each(store_after_a_block_has_left), each(store_in_no_block), \
      each(load_of_another_blocks_store), each(load_of_another_warps_store),                    \
      each(load_behind_a_relaxed_barrier), each(two_stores_to_one_place),                       \
      each(store_behind_a_load), each(store_before_the_wait), each(arrival_without_a_wait),     \
      each(arrival_twice), each(wait_without_an_arrival)
enum class Misuse : int { EMULATOR_MISUSES(EMULATOR_NAME) };

struct MisuseParams {
  Misuse misuse;
  float* out;
};

// The kernel counts as one of 128 static bytes; allowed_bytes is set as its attribute if not 0.
void launch_misuse(const MisuseParams& params, int blocks, int threads, size_t dynamic_bytes,
                   int allowed_bytes);

struct PrimitivesParams {
  unsigned* out;  // one row a primitive, one column a thread
};
void launch_primitives(const PrimitivesParams& params, int threads);

// Each thread has as many rounds as there are blocks in a cluster, and in each stores its number in
// the next block of its own.
struct ExchangeParams {
  float* out;  // [blocks, 32]: what each block has in the end
};
void launch_exchange(const ExchangeParams& params, int blocks, int cluster);
