// A walk down one sequence's tree, by a block. Nodes count from the sequence's first, the root is
// -1, and no child comes before its parent.
#pragma once

#include "verify_position.cuh"

namespace rdk {

// In the place of a kernel's rows, which may be cut: some nodes were drawn, and are judged by token
// or by block.
struct Drawn {
  static constexpr bool kDrawn = true, kByBlock = false;
};
struct DrawnBlock {
  static constexpr bool kDrawn = true, kByBlock = true;
};

// In shared memory. The steps of `Sequence` are depths: its path leads to where the walk is, and on
// along the drawn nodes that follow, `count` nodes in all.
struct TreeSequence : Sequence {
  Owned tree;
  int32_t* path;  // in the result, which keeps what of it is accepted
  int depth;      // of where the walk is
  unsigned nesting;

  RDK_DEVICE int node_at(int at) const { return at == 0 ? -1 : global_load(&path[at - 1]); }
};

RDK_DEVICE int64_t draft_of(const TreeSequence& sequence, int step) {
  return sequence.tree.start + global_load(&sequence.path[step]);
}
RDK_DEVICE int64_t token_of(const TreeSequence& sequence, int step) {
  return draft_of(sequence, step);
}
RDK_DEVICE int64_t row_of(const TreeSequence& sequence, int step) {
  return sequence.tree.start + sequence.index + 1 + sequence.node_at(step);
}
RDK_DEVICE int first_step(const TreeSequence& sequence) { return sequence.depth; }
RDK_DEVICE unsigned nesting_of(const TreeSequence& sequence) { return sequence.nesting; }

// The first child that is one of those asked for, by one warp; -1 if there is none.
template <typename Asked>
RDK_DEVICE int first_child(const VerifyTreeParams& params, const Owned& tree, int node,
                           Asked&& asked) {
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

RDK_DEVICE int child_of(const VerifyTreeParams& params, const Owned& tree, int node,
                        int64_t token) {
  return first_child(params, tree, node,
                     [&](int64_t place) { return params.drafts.token_ids[place] == token; });
}

// At temperature 0 it does not matter how a node came about.
RDK_DEVICE bool draws(const VerifyTreeParams& params, const TreeSequence& sequence) {
  return params.mixed() && sequence.target_temperature != 0.0f;
}

RDK_DEVICE int fixed_child(const VerifyTreeParams& params, const TreeSequence& sequence, int node,
                           int64_t token) {
  const bool any = !draws(params, sequence);
  return first_child(params, sequence.tree, node, [&](int64_t place) {
    return params.drafts.token_ids[place] == token && (any || params.draft_rows.index[place] == -1);
  });
}

// By one warp: the drawn nodes that follow where the walk is, into its path: all or the first one.
RDK_DEVICE void follow_drawn(const VerifyTreeParams& params, bool all, TreeSequence* sequence) {
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
