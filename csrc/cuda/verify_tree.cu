// verify_tree: a block walks a sequence's tree from the root. At each node its warps sum the
// target's row, the first warp draws a token from it, and the child that has the token is where the
// walk goes on (DESIGN section 2, "Trees with fixed children"). Memory floor: the target logits of
// the nodes on the path, once.

#include "verify_tree.h"

#include "launch_kernel.cuh"
#include "truncation.cuh"

namespace rdk {
namespace {

constexpr int kThreads = VerifyTreeLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = VerifyTreeLaunch::kBlocks;

// The first child with this token, by one warp; -1 if there is none. Nodes count from the
// sequence's first, the root is -1, and no child comes before its parent.
__device__ __forceinline__ int child_of(const VerifyTreeParams& params, const Owned& tree, int node,
                                        int64_t token) {
  const int count = static_cast<int>(tree.count);
#pragma unroll 1
  for (int first = node + 1; first < count; first += kWarp) {
    const int child = first + lane_index();
    const int64_t place = tree.start + child;
    const bool is_it =
        child < count && params.parents[place] == node && params.nodes.token_ids[place] == token;
    const unsigned found = __ballot_sync(kAllLanes, is_it);
    if (found != 0) return first + __ffs(found) - 1;
  }
  return -1;
}

// By a block: cuts the row of a node. Its chunk sums become those of what is kept.
template <typename T>
__device__ __forceinline__ void cut_row(const RowLimits<Whole>&, ChunkSum*, unsigned char*,
                                        TargetColumns<T, Whole>*) {}
template <typename T>
__device__ __forceinline__ void cut_row(const RowLimits<Cut>& limits, ChunkSum* sums,
                                        unsigned char* shared, TargetColumns<T, Cut>* columns) {
  if (!limits.any()) return;
  auto* scratch = reinterpret_cast<ThresholdScratch*>(shared);
  columns->cut = limits.at(threshold_of(*columns, sums, limits, scratch));
  sum_kept_chunks(*columns, sums, [&](int chunk, float (&z)[kPerLane], float largest) {
    store_chunk_sum(exponentiate(columns->cut, largest, z), &sums[chunk]);
  });
}

// What is drawn at a node, by one warp; -1 if its row has no distribution.
template <typename T, typename C>
__device__ __forceinline__ int drawn_token(const VerifyTreeLaunch& launch, int64_t sequence,
                                           int depth, const TargetColumns<T, C>& columns,
                                           const ChunkSum* sums) {
  const VerifyTreeParams& params = launch.params;
  const Softmax softmax = merge_chunks(sums, columns.chunks());
  if (!softmax.valid) return -1;
  if (params.sequences.temperature[sequence] == 0.0f) return argmax_column(columns, softmax);
  const int64_t position = later(params.sequences.positions[sequence], depth);
  return draw_column(
      columns, softmax,
      random_words(params.sequences.step_keys[sequence], position, Purpose::kBonus, 0));
}

template <typename T, typename C>
__global__ void __launch_bounds__(kThreads, kBlocks)
    verify_tree_kernel(const VerifyTreeLaunch launch) {
  __shared__ int next;
  RDK_DYNAMIC_SHARED(shared);
  wait_for_earlier_kernels();
  const VerifyTreeParams& params = launch.params;
  const int64_t sequence = blockIdx.x;
  const int max_depth = static_cast<int>(params.max_depth);
  int64_t* tokens = params.tokens + sequence * (params.max_depth + 1);
  int32_t* path = params.path + sequence * params.max_depth;
#pragma unroll 1
  for (int64_t i = threadIdx.x; i <= max_depth; i += kThreads) {
    tokens[i] = -1;
    if (i < max_depth) path[i] = -1;
  }
  if (threadIdx.x == 0) params.num_accepted[sequence] = 0;
  const float temperature = params.sequences.temperature[sequence];
  const RowLimits<C> limits(params.sequences.truncation, sequence,
                            static_cast<int>(params.target.size), temperature);
  if (!usable_temperature(temperature) || !limits.usable()) return;
  __syncthreads();

  const Owned tree = owned(params.nodes.offsets, sequence, params.nodes.count);
  const Rows& rows = params.target.logits;  // of two dimensions, so of one stride
  const int chunks = (static_cast<int>(params.target.size) + kChunk - 1) / kChunk;
  ChunkSum* sums = launch.chunks + sequence * chunks;
  int node = -1;  // the root
#pragma unroll 1
  for (int depth = 0;; ++depth) {
    const int64_t row = tree.start + sequence + 1 + node;
    TargetColumns<T, C> columns{Logits<T>(params.target.dtype, rows.data, row * rows.inner_stride),
                                static_cast<int>(params.target.size), Scale(temperature),
                                limits.before(), C::Mask::of(params.target.allowed, row)};
    stream_chunks(columns, ring_of_warp(shared), warp_index(), kWarps, chunks,
                  [&](int chunk, float (&z)[kPerLane], float largest) {
                    store_chunk_sum(exponentiate(columns.cut, largest, z), &sums[chunk]);
                  });
    __syncthreads();
    cut_row(limits, sums, shared, &columns);
    if (warp_index() == 0) {
      const int token = drawn_token(launch, sequence, depth, columns, sums);
      const bool goes_on = token >= 0 && depth < max_depth;
      const int child = goes_on ? child_of(params, tree, node, token) : -1;
      if (lane_index() == 0) {
        tokens[depth] = token;
        if (child >= 0) {
          path[depth] = child;
          params.num_accepted[sequence] = depth + 1;
        }
        next = child;
      }
    }
    __syncthreads();
    node = next;
    if (node < 0) return;
  }
}

}  // namespace

RDK_START(VerifyTree, VERIFY_TREE)

}  // namespace rdk
