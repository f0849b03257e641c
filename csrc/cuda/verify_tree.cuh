// A walk down one sequence's tree, by a block. Nodes count from the sequence's first, the root is
// -1, and no child comes before its parent.
#pragma once

#include "verify_tree.h"

#include "verify_position.cuh"

namespace rdk {

// In the place of a kernel's rows, which may be cut: some nodes were drawn, and are judged by token
// or by block.
struct Drawn {
  static constexpr bool kByBlock = false;
};
struct DrawnBlock {
  static constexpr bool kByBlock = true;
};
template <typename R>
constexpr bool kJudges = false;
template <>
constexpr bool kJudges<Drawn> = true;
template <>
constexpr bool kJudges<DrawnBlock> = true;

// In shared memory. The steps of `Sequence` are depths: its path leads to where the walk is, and on
// along the drawn nodes that follow, `count` nodes in all.
struct TreeSequence : Sequence {
  Owned tree;
  int32_t* path;  // in the result, which keeps what of it is accepted
  int depth;      // of where the walk is
  unsigned nesting;

  __device__ __forceinline__ int node_at(int at) const {
    return at == 0 ? -1 : global_load(&path[at - 1]);
  }
};

__device__ __forceinline__ int64_t draft_of(const TreeSequence& sequence, int step) {
  return sequence.tree.start + global_load(&sequence.path[step]);
}
__device__ __forceinline__ int64_t token_of(const TreeSequence& sequence, int step) {
  return draft_of(sequence, step);
}
__device__ __forceinline__ int64_t row_of(const TreeSequence& sequence, int step) {
  return sequence.tree.start + sequence.index + 1 + sequence.node_at(step);
}
__device__ __forceinline__ int first_step(const TreeSequence& sequence) { return sequence.depth; }
__device__ __forceinline__ unsigned nesting_of(const TreeSequence& sequence) {
  return sequence.nesting;
}

// A row's chunk sums, merged, by one warp. Each is loaded once, several of a lane at a time,
// because a load takes as long as all else that is done with it; from then on they are in shared
// memory, where a weight replaces its sum. Lanes read only what they have written. In a row of more
// chunks than are kept, those behind are loaded again.
struct KeptSums : Softmax {
  static constexpr int kKept = 256;  // of 262,144 columns
  static constexpr int kEach = 4;    // of a lane
  static_assert(kKept % (kEach * kWarp) == 0);
  static_assert(kKept * sizeof(ChunkSum) <= kRingBytes, "they lie where the first ring was");
  ChunkSum* kept;

  __device__ __forceinline__ KeptSums(const ChunkSum* sums, int sums_count, ChunkSum* shared)
      : Softmax{sums, sums_count, -infinity(), 0.0f, false}, kept(shared) {
    bool sound = true;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kEach * kWarp) {
      ChunkSum loaded[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) loaded[j] = load(begin + j * kWarp + lane_index());
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        max = fmaxf(max, loaded[j].max);
        sound = sound && loaded[j].sum < infinity();
        if (begin < kKept) kept[begin + j * kWarp + lane_index()] = loaded[j];
      }
    }
    max = warp_max(max);
    valid = __all_sync(kAllLanes, sound) && max > -infinity() && max < infinity();
    if (!valid) return;
    total = warp_total_of<kEach>(count, [&](int begin, float (&out)[kEach]) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int c = begin + j * kWarp + lane_index();
        const ChunkSum sum = begin < kKept ? kept[c] : load(c);
        out[j] = sum.max == -infinity() ? 0.0f : sum.sum * expf(sum.max - max);
        if (begin < kKept) kept[c].sum = out[j];
      }
    });
  }

  __device__ __forceinline__ ChunkSum load(int c) const {
    if (c >= count) return {-infinity(), 0.0f};
    return {global_load(&chunks[c].max), global_load(&chunks[c].sum)};
  }

  // As draw_column and argmax_column.
  template <typename Row>
  __device__ __forceinline__ int draw(const Row& row, const PhiloxWords& words) const {
    const auto weights = [&](int begin, float (&out)[kEach]) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int c = begin + j * kWarp + lane_index();
        out[j] = begin < kKept ? kept[c].sum : weight(c);
      }
    };
    const int chunk = warp_draw_of<kEach>(count, uniform(words.word[0]), total, weights);
    return chunk * kChunk + draw_in_chunk(row, chunk, words);
  }
  template <typename Row>
  __device__ __forceinline__ int argmax(const Row& row) const {
    int chunk = lane_index();
    while (chunk < count && (chunk < kKept ? kept[chunk] : load(chunk)).max != max) chunk += kWarp;
    chunk = warp_min(chunk);
    float z[kPerLane];
    row.scaled_chunk(chunk, InMemory{}, z);
    return chunk * kChunk + column_of_largest(z, max);
  }
};

// The first child that is one of those asked for, by one warp; -1 if there is none.
template <typename Asked>
__device__ __forceinline__ int first_child(const VerifyTreeParams& params, const Owned& tree,
                                           int node, Asked&& asked) {
  const int count = static_cast<int>(tree.count);
#pragma unroll 1
  for (int first = node + 1; first < count; first += kWarp) {
    const int child = first + lane_index();
    const int64_t place = tree.start + child;
    // Both are loaded at once.
    const bool is_it = child < count && ((params.parents[place] == node) & asked(place));
    const unsigned found = __ballot_sync(kAllLanes, is_it);
    if (found != 0) return first + __ffs(found) - 1;
  }
  return -1;
}

__device__ __forceinline__ int child_of(const VerifyTreeParams& params, const Owned& tree, int node,
                                        int64_t token) {
  return first_child(params, tree, node,
                     [&](int64_t place) { return params.drafts.token_ids[place] == token; });
}

// At temperature 0 it does not matter how a node came about.
__device__ __forceinline__ bool draws(const VerifyTreeParams& params,
                                      const TreeSequence& sequence) {
  return params.mixed() && sequence.target_temperature != 0.0f;
}

__device__ __forceinline__ int fixed_child(const VerifyTreeParams& params,
                                           const TreeSequence& sequence, int node, int64_t token) {
  const bool any = !draws(params, sequence);
  return first_child(params, sequence.tree, node, [&](int64_t place) {
    return params.drafts.token_ids[place] == token && (any || params.draft_rows.index[place] == -1);
  });
}

// By one warp: the drawn nodes that follow where the walk is, into its path: all or the first one.
__device__ __forceinline__ void follow_drawn(const VerifyTreeParams& params, bool all,
                                             TreeSequence* sequence) {
  int depth = sequence->depth;
  int node = sequence->node_at(depth);
  const int most = static_cast<int>(params.max_draft);
  const int end = all ? most : min(most, depth + 1);
#pragma unroll 1
  while (depth < end && draws(params, *sequence)) {
    const int child = first_child(params, sequence->tree, node, [&](int64_t place) {
      return params.draft_rows.index[place] != -1 && params.drafts.token_ids[place] != -1;
    });
    if (child < 0) break;
    if (lane_index() == 0) global_store(&sequence->path[depth], child);
    node = child;
    ++depth;
  }
  __syncwarp(kAllLanes);
  if (lane_index() == 0) sequence->count = depth;
}

}  // namespace rdk
