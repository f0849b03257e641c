// redistribute: q(x) = sum_i q'_i S[i, x] + sum_r s_r P[r, x] for every x, gathered over the
// columns of S, so that each sum is taken in one fixed order, without atomics. Memory floor: V_t
// probabilities of each row written once, its V_d + C logits and the sparse structure read once. A
// block takes a tile of target tokens for a group of rows. No block waits for another: each sums
// the softmax of its rows itself, from logits in the L2 cache, and keeps exp(z - max) in shared
// memory if that has room.

#include "redistribute.h"

#include "affinity.cuh"
#include "launch_kernel.cuh"

namespace rdk {
namespace {

constexpr int kThreads = RedistributeLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = RedistributeLaunch::kBlocks;
constexpr int kMaxGroup = RedistributeLaunch::kMaxGroup;

enum class RowKind : int32_t { kNone, kGreedy, kSoftmax };

// In shared memory.
struct GroupRow {
  RowKind kind;
  int top;  // of a greedy row
  float stats[2 + kMaxRank];
};
static_assert(kMaxGroup * sizeof(GroupRow) == RedistributeLaunch::kStaticSharedBytes,
              "the plan leaves room for it");

// The row's kind and stats, by the whole block; workspace is this block's own.
template <typename T>
__device__ __forceinline__ void summarize_row(const RedistributeLaunch& launch,
                                              const DraftRow<T>& row, float temperature,
                                              GroupRow* summary) {
  const int rank = static_cast<int>(launch.params.affinity.rank);
  const int chunks = row.chunks();
  ChunkSum* chunk_sums = launch.chunks + static_cast<int64_t>(blockIdx.x) * chunks;
  float* spread_sums = launch.spread_sums + static_cast<int64_t>(blockIdx.x) * rank * chunks;
  const bool usable = usable_temperature(temperature);
  for (int chunk = warp_index(); usable && chunk < chunks; chunk += kWarps) {
    float z[kPerLane];
    row.scaled_chunk(chunk, InMemory{}, z);
    sum_draft_chunk(row, chunk, z, launch.params.affinity.spread, rank, chunk_sums, spread_sums);
  }
  __syncthreads();
  if (warp_index() == 0) {
    const Softmax softmax = merge_chunks(chunk_sums, usable ? chunks : 0);
    RowKind kind = softmax.valid ? RowKind::kSoftmax : RowKind::kNone;
    int top = -1;
    if (softmax.valid && temperature == 0.0f) {
      kind = RowKind::kGreedy;
      const int column = argmax_column(row, softmax);
      top = row.is_dynamic(column) ? row.dynamic_tokens[row.dynamic_index(column)]
                                   : launch.params.row_top[column];
    }
    if (lane_index() == 0) {
      summary->kind = kind;
      summary->top = top;
    }
    write_draft_stats(softmax, spread_sums, rank, summary->stats);
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    redistribute_kernel(const RedistributeLaunch launch) {
  __shared__ GroupRow group[kMaxGroup];
  RDK_DYNAMIC_SHARED(shared);
  const RedistributeParams& params = launch.params;
  const AffinityColumns& affinity = params.affinity;
  const int draft_size = static_cast<int>(params.draft.draft_size);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / launch.tiles) * launch.group;
  const int rows =
      static_cast<int>(min(static_cast<int64_t>(launch.group), params.rows - first_row));
  const int begin = blockIdx.x % launch.tiles * launch.tile;
  const int end = min(begin + launch.tile, static_cast<int>(affinity.target_size));
  float* weights = reinterpret_cast<float*>(shared);  // [group, V_d], or nothing
  unsigned char* marked =
      shared + (launch.shared_weights ? launch.group * draft_size * sizeof(float) : 0);

#pragma unroll 1
  for (int g = 0; g < rows; ++g) {
    const float temperature = params.temperature[first_row + g];
    const DraftRow<T> row(params.draft, first_row + g, temperature);
    summarize_row(launch, row, temperature, &group[g]);
    if (launch.shared_weights && group[g].kind == RowKind::kSoftmax) {
      for (int i = threadIdx.x; i < draft_size; i += kThreads) {
        weights[g * draft_size + i] = expf(row.static_value(i) - group[g].stats[0]);
      }
    }
    if (row.dynamic_size > 0) {
      unsigned char* marks = marked + g * launch.tile;
      for (int i = threadIdx.x; i < launch.tile; i += kThreads) marks[i] = 0;
      __syncthreads();
      for (int c = threadIdx.x; c < row.dynamic_size; c += kThreads) {
        const int token = row.dynamic_tokens[c];
        if (token >= begin && token < end) marks[token - begin] = 1;
      }
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int x = begin + threadIdx.x; x < end; x += kThreads) {
    const Entries column = column_entries(affinity, x);
#pragma unroll 1
    for (int g = 0; g < rows; ++g) {
      float* out = params.probs + (first_row + g) * affinity.target_size + x;
      const float* stats = group[g].stats;
      if (group[g].kind != RowKind::kSoftmax) {
        *out = group[g].kind == RowKind::kNone ? not_a_number() : (x == group[g].top ? 1.0f : 0.0f);
        continue;
      }
      const DraftRow<T> row(params.draft, first_row + g, params.temperature[first_row + g]);
      *out = token_q<OneLane>(
          affinity, column, stats, x,
          [&](int draft) {
            return launch.shared_weights ? weights[g * draft_size + draft]
                                         : expf(row.static_value(draft) - stats[0]);
          },
          [&](float mass) {
            const bool any = row.dynamic_size > 0 && marked[g * launch.tile + x - begin] != 0;
            return any ? mass + add_dynamic<OneLane>(row, stats[0], x, 0.0f) : mass;
          });
    }
  }
}

}  // namespace

#if !defined(__CUDACC_RTC__)

cudaError_t start(const RedistributeLaunch& launch, cudaStream_t stream) {
  return launch_one_of<RedistributeLaunch>({RDK_REDISTRIBUTE_KERNELS(RDK_FUNCTION)}, launch,
                                           stream);
}

#endif

}  // namespace rdk
