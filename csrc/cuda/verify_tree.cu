// verify_tree: a block walks a sequence's tree from the root. At each node its warps sum the
// target's row. Where all children are fixed, the first warp draws a token, and the child that has
// it is where the walk goes on; few such trees have a cluster each, whose blocks sum a row
// together. Drawn nodes that follow each other are judged as verify judges a chain (DESIGN section
// 2, "Trees"). Memory floor: the target logits of the nodes on the path and, by block, of the drawn
// nodes that are judged, once.

#include "launch_kernel.cuh"
#include "verify_block.cuh"
#include "verify_token.cuh"
#include "verify_tree.cuh"

namespace rdk {
namespace {

constexpr int kThreads = VerifyTreeLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = VerifyTreeLaunch::kBlocks;

// Nothing is put out yet.
RDK_DEVICE void clear(const VerifyTreeParams& params, int64_t sequence) {
  const int most = static_cast<int>(params.max_draft);
  int64_t* tokens = params.tokens + sequence * (params.max_draft + 1);
  int32_t* path = params.path + sequence * params.max_draft;
#pragma unroll 1
  for (int64_t i = threadIdx.x; i <= most; i += kThreads) {
    tokens[i] = -1;
    if (i < most) path[i] = -1;
  }
  if (threadIdx.x == 0) params.num_accepted[sequence] = 0;
}

// By a block, one of `splits` that share the row.
template <typename T, typename C>
RDK_DEVICE void sum_row(const TargetColumns<T, C>& columns, ChunkSum* sums, unsigned char* shared,
                        int split, int splits) {
  stream_chunks(columns, ring_of_warp(shared), split * kWarps + warp_index(), splits * kWarps,
                columns.chunks(), [&](int chunk, float (&z)[kPerLane], float largest) {
                  store_chunk_sum(exponentiate(columns.cut, largest, z), &sums[chunk]);
                });
}

// ------------------------------------------------------------------------ of fixed nodes

// What is drawn at a node, by one warp; -1 if its row has no distribution.
template <typename T, typename C>
RDK_DEVICE int drawn_token(const TargetColumns<T, C>& columns, const ChunkSum* sums,
                           unsigned char* shared, bool greedy, int64_t step_key, int64_t position) {
  const KeptSums merged(sums, columns.chunks(), reinterpret_cast<ChunkSum*>(shared));
  if (!merged.valid) return -1;
  if (greedy) return merged.argmax(columns);
  return merged.draw(columns, random_words(step_key, position, Purpose::kBonus, 0));
}

// By all threads of the blocks that share a tree.
RDK_DEVICE void meet(int splits) {
  if (splits > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
}

template <typename T, typename C>
RDK_DEVICE void walk_fixed(const VerifyTreeLaunch& launch, unsigned char* shared) {
  __shared__ int next;
  const VerifyTreeParams& params = launch.params;
  const int splits = static_cast<int>(launch.shape.cluster);
  const int64_t sequence = blockIdx.x / splits;
  const int split = blockIdx.x % splits;
  const int max_depth = static_cast<int>(params.max_draft);
  int32_t* path = params.path + sequence * max_depth;
  // All that is known of the sequence is asked for at once, not row by row where it is needed.
  const float temperature = params.sequences.temperature[sequence];
  const int64_t step_key = params.sequences.step_keys[sequence];
  const int64_t position = params.sequences.positions[sequence];
  const Owned tree = owned(params.drafts, sequence);
  if (split == 0) clear(params, sequence);
  const RowLimits<C> limits(params.sequences.truncation, sequence,
                            static_cast<int>(params.target.size), temperature);
  if (!usable_temperature(temperature) || !limits.usable()) return;
  __syncthreads();

  const Rows& rows = params.target.logits;  // of two dimensions, so of one stride
  const int chunks = chunks_in(params.target.size);
  ChunkSum* sums = launch.target_chunks + sequence * chunks;
  int node = -1;  // the root
#pragma unroll 1
  for (int depth = 0;; ++depth) {
    const int64_t row = tree.start + sequence + 1 + node;
    TargetColumns<T, C> columns{Logits<T>(params.target.dtype, rows.data, row * rows.inner_stride),
                                static_cast<int>(params.target.size), Scale(temperature),
                                limits.before(), C::Mask::of(params.target.allowed, row)};
    sum_row(columns, sums, shared, split, splits);
    meet(splits);
    if (split == 0) {
      if constexpr (C::kCuts) {
        if (limits.any()) cut_target(limits, sums, shared, &columns);
      }
      if (warp_index() == 0) {
        const int token = drawn_token(columns, sums, shared, temperature == 0.0f, step_key,
                                      later(position, depth));
        const bool goes_on = token >= 0 && depth < max_depth;
        const int child = goes_on ? child_of(params, tree, node, token) : -1;
        if (lane_index() == 0) {
          params.tokens[sequence * (params.max_draft + 1) + depth] = token;
          if (child >= 0) {
            global_store(&path[depth], child);  // for the other blocks, too
            params.num_accepted[sequence] = depth + 1;
          }
          next = child;
        }
      }
    }
    meet(splits);
    if (split == 0) {
      node = next;
    } else {
      node = depth < max_depth ? global_load(&path[depth]) : -1;
    }
    if (node < 0) return;
  }
}

// ------------------------------------------------------------------------ of drawn nodes

// By one warp.
RDK_DEVICE void load_tree(const VerifyTreeParams& params, int64_t index, TreeSequence* sequence) {
  if (lane_index() != 0) return;
  const float draft_temperature = params.mixed() ? params.draft_rows.temperature[index] : 0.0f;
  const Owned tree = owned(params.drafts, index);
  *sequence = {{index, tree.start, tree.start, tree.start, params.sequences.step_keys[index],
                params.sequences.positions[index], 0, params.sequences.temperature[index],
                draft_temperature},
               tree,
               params.path + index * params.max_draft,
               0,
               0};
}

// Judges drawn nodes, by a drafter of any type.
template <typename T>
using TreeJudge = Judge<T, AnyDtype, Cut, VerifyTreeLaunch, TreeSequence>;

// Looked up where they are needed, which keeps fewer registers alive from step to step.
template <typename T>
RDK_DEVICE RowLimits<Cut> limits_of(const TreeJudge<T>& judge) {
  const VerifyTreeParams& params = judge.launch.params;
  return {params.sequences.truncation, judge.sequence.index, static_cast<int>(params.target.size),
          judge.sequence.target_temperature};
}

// By the block: the sums of the row that judges a step, and of the drafted one.
template <typename T>
RDK_DEVICE void sum_step(const TreeJudge<T>& judge, int step, const Cut& cut) {
  const TargetColumns<T, Cut> columns = judge.target_row(step, cut);
  sum_row(columns, judge.target_sums(step, columns.chunks()), judge.shared, 0, 1);
  if (judge.launch.params.draft_rows.stats == nullptr && step < judge.sequence.count) {
    judge.sum_draft_row(step, warp_index(), kWarps);
  }
  __syncthreads();
}

// What is judged by token where it gives no token.
constexpr int kAcceptedNode = -4;

// By the block: how many nodes are accepted in all once the drawn one that follows, or all of them,
// are judged. The first warp knows the token behind them, below 0 if there is none.
template <typename T>
RDK_DEVICE int judge_by_token(const TreeJudge<T>& judge, int* token) {
  __shared__ Position position;
  const RowLimits<Cut> limits = limits_of(judge);
  const int step = judge.sequence.depth;
  Cut cut = limits.before();
  sum_step(judge, step, cut);
  if (limits.any()) cut = cut_step(judge, step, limits);
  if (warp_index() == 0) decide(judge, step, cut, &position);
  __syncthreads();
  if (position.verdict == Verdict::kAccepted) {
    *token = kAcceptedNode;
    return step + 1;
  }
  *token = last_token(judge, step, position, cut);
  return step;
}

template <typename T>
RDK_DEVICE int judge_by_block(const TreeJudge<T>& judge, int* token) {
  __shared__ Position positions[kWarps];
  __shared__ int decided[kWarps];
  int longest = -1;
#pragma unroll 1
  for (int step = judge.sequence.depth; longest < 0; ++step) {
    sum_step(judge, step, limits_of(judge).before());
    longest = weigh_prefixes(judge, step, step, limits_of(judge), positions);
  }
  return accept_prefix(judge, longest, limits_of(judge), positions, decided, token);
}

// By the first warp: puts out what was judged, and takes the walk to a fixed child that has the
// token. False if the walk ends.
RDK_DEVICE bool go_on(const VerifyTreeParams& params, int accepted, int token,
                      TreeSequence* sequence) {
  const int64_t index = sequence->index;
  int64_t* tokens = params.tokens + index * (params.max_draft + 1);
#pragma unroll 1
  for (int at = sequence->depth + lane_index(); at < sequence->count; at += kWarp) {
    if (at < accepted) {
      tokens[at] = params.drafts.token_ids[draft_of(*sequence, at)];
    } else {
      global_store(&sequence->path[at], -1);
    }
  }
  __syncwarp(kAllLanes);
  int child = -1;
  if (token >= 0 && accepted < params.max_draft) {
    child = fixed_child(params, *sequence, sequence->node_at(accepted), token);
  }
  if (lane_index() == 0) {
    if (token >= 0) tokens[accepted] = token;
    if (child >= 0) global_store(&sequence->path[accepted], child);
    sequence->depth = child >= 0 ? accepted + 1 : accepted;
    ++sequence->nesting;
    params.num_accepted[index] = sequence->depth;
  }
  __syncwarp(kAllLanes);
  return child >= 0 || token == kAcceptedNode;
}

template <typename T, typename R>
RDK_DEVICE void walk_drawn(const VerifyTreeLaunch& launch, unsigned char* shared) {
  __shared__ TreeSequence sequence;
  __shared__ bool goes_on;
  const VerifyTreeParams& params = launch.params;
  if (warp_index() == 0) load_tree(params, blockIdx.x, &sequence);
  clear(params, blockIdx.x);
  __syncthreads();
  const TreeJudge<T> judge{
      launch, sequence, chunks_in(params.draft.draft_size) + chunks_in(params.draft.dynamic_size),
      shared};
  if (!usable_temperature(sequence.target_temperature) || !limits_of(judge).usable()) return;
#pragma unroll 1
  do {
    if (warp_index() == 0) follow_drawn(params, R::kByBlock, &sequence);
    __syncthreads();
    int token = -1;
    int accepted;
    if constexpr (R::kByBlock) {
      accepted = judge_by_block(judge, &token);
    } else {
      accepted = judge_by_token(judge, &token);
    }
    __syncthreads();
    if (warp_index() == 0) {
      const bool found = go_on(params, accepted, token, &sequence);
      if (lane_index() == 0) goes_on = found;
    }
    __syncthreads();
  } while (goes_on);
}

template <typename T, typename R>
__global__ void __launch_bounds__(kThreads, kBlocks)
    verify_tree_kernel(const VerifyTreeLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  wait_for_earlier_kernels();
  if constexpr (R::kDrawn) {
    walk_drawn<T, R>(launch, shared);
  } else {
    walk_fixed<T, R>(launch, shared);
  }
}

}  // namespace

RDK_START(VerifyTree, VERIFY_TREE)

}  // namespace rdk
