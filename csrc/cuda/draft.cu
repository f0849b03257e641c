// draft: a drafter token i ~ q' by a draw of two levels, then x ~ A[i] by a search in running sums;
// q is never built (DESIGN section 3). Memory floor: the V_d + C logits of each row once, and bias
// and spread, which all rows share. A warp sums a chunk of 1024 columns. Few rows are split over
// many blocks; the last block of a row draws from the chunk sums, and reads only one chunk again.

#include "draft.h"

#include "affinity.cuh"
#include "launch_kernel.cuh"
#include "ticket.cuh"

namespace rdk {
namespace {

constexpr int kMaxThreads = DraftLaunch::kMaxThreads;
constexpr int kBlocks = DraftLaunch::kBlocks;

template <typename T>
__device__ __forceinline__ void finish_row(const DraftLaunch& launch, int64_t index,
                                           const DraftRow<T, Whole>& row, float temperature) {
  const DraftParams& params = launch.params;
  const int rank = static_cast<int>(params.affinity.rank);
  const int chunks = row.chunks();
  float* stats = params.stats + index * (2 + rank);
  const Softmax softmax = merge_chunks(launch.chunks + index * chunks, chunks);
  if (temperature != 0.0f || !softmax.valid) {
    write_draft_stats(softmax, launch.spread_sums + index * rank * chunks, rank, stats);
  } else if (lane_index() < 2 + rank) {
    stats[lane_index()] = 0.0f;
  }

  int64_t token = -1;
  if (softmax.valid) {
    const int64_t step_key = params.step_keys[index];
    const int64_t position = params.positions[index];
    const PhiloxWords words = random_words(step_key, position, Purpose::kDraft, 0);
    const int column =
        temperature == 0.0f ? argmax_column(row, softmax) : draw_column(row, softmax, words);
    if (row.is_dynamic(column)) {
      token = row.dynamic_tokens[row.dynamic_index(column)];
    } else if (temperature == 0.0f) {
      token = params.affinity.top[column];
    } else {
      token = warp_draw_target(params.affinity, column, step_key, position, words.word[2]);
    }
  }
  if (lane_index() == 0) params.tokens[index] = token;
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, kBlocks) draft_kernel(const DraftLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  const DraftParams& params = launch.params;
  const int64_t index = blockIdx.x / launch.splits;
  const int split = blockIdx.x % launch.splits;
  const int rank = static_cast<int>(params.affinity.rank);
  const float temperature = params.temperature[index];
  if (!usable_temperature(temperature)) {
    if (split == 0 && threadIdx.x < 2 + rank) {
      params.stats[index * (2 + rank) + threadIdx.x] = not_a_number();
    }
    if (split == 0 && threadIdx.x == 0) params.tokens[index] = -1;
    return;
  }
  const DraftRow<T, Whole> row(params.draft, index, temperature, Whole{});
  const int chunks = row.chunks();
  const int warps = blockDim.x / kWarp;
  ChunkSum* chunk_sums = launch.chunks + index * chunks;
  float* spread_sums = launch.spread_sums + index * rank * chunks;
  stream_chunks(row, ring_of_warp(shared), split * warps + warp_index(), launch.splits * warps,
                chunks, [&](int chunk, float (&z)[kPerLane]) {
                  sum_draft_chunk(row, chunk, z, params.affinity.spread, rank, chunk_sums,
                                  spread_sums);
                });
  if (!last_block(launch.tickets + index, launch.splits)) return;
  if (warp_index() == 0) finish_row(launch, index, row, temperature);
}

}  // namespace

#if !defined(__CUDACC_RTC__)

cudaError_t start(const DraftLaunch& launch, cudaStream_t stream) {
  return launch_one_of<DraftLaunch>({RDK_DRAFT_KERNELS(RDK_FUNCTION)}, launch, stream);
}

#endif

}  // namespace rdk
