// draft: a drafter token i ~ q' by a draw of two levels, then x ~ A[i] by a search in running sums;
// q is never built (DESIGN section 3). Memory floor: the V_d + C logits of each row once, and
// spread and a bias, if there is one, which all rows share. A warp sums a chunk of 1024 columns.
// Few rows are split over several blocks; one block of a row draws from the chunk sums, and reads
// only one chunk again. In a step each block also keeps its part of the row, which it has just
// read: so many bytes again, to memory.

#include "draft.h"

#include "affinity.cuh"
#include "launch_kernel.cuh"
#include "ticket.cuh"
#include "truncation.cuh"

namespace rdk {
namespace {

constexpr int kMaxThreads = DraftLaunch::kMaxThreads;
constexpr int kBlocks = DraftLaunch::kBlocks;

// Of a row's stats: those of a row that may be cut have its threshold, too.
template <typename C>
__device__ __forceinline__ int stats_width(const DraftParams& params) {
  return 2 + static_cast<int>(params.affinity.rank) + (C::kCuts ? 1 : 0);
}

// By all blocks of a row, each a part: stores `count` elements, unless they are there already.
template <typename E>
__device__ __forceinline__ void keep(const E* row, int count, E* kept, int split, int splits) {
  if (row == kept) return;
  const int stride = splits * static_cast<int>(blockDim.x);
  const int first = split * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  constexpr int kElements = sizeof(uint4) / sizeof(E);
  const uint64_t both = reinterpret_cast<uint64_t>(row) | reinterpret_cast<uint64_t>(kept);
  const int vectors = both % sizeof(uint4) == 0 ? count / kElements : 0;
#pragma unroll 4
  for (int i = first; i < vectors; i += stride) {
    reinterpret_cast<uint4*>(kept)[i] = __ldg(reinterpret_cast<const uint4*>(row) + i);
  }
#pragma unroll 4
  for (int i = vectors * kElements + first; i < count; i += stride) kept[i] = row[i];
}

template <typename T, typename C>
__device__ __forceinline__ void keep_row(const DraftParams& params, int64_t index,
                                         const DraftRow<T, C>& row, int split, int splits) {
  const int64_t slot = params.slot(index);
  if (params.step.places == 0 || slot < 0) return;
  const int64_t at = params.kept_at(slot);
  const StepRows& step = params.step;
  keep(row.logits.row, row.size, static_cast<T*>(step.logits) + at * row.size, split, splits);
  if (row.dynamic_size == 0) return;
  const int64_t dynamic = at * row.dynamic_size;
  keep(row.dynamic_tokens, row.dynamic_size, step.dynamic_tokens + dynamic, split, splits);
  keep(row.dynamic_logits.row, row.dynamic_size, static_cast<T*>(step.dynamic_logits) + dynamic,
       split, splits);
}

__device__ __forceinline__ int64_t key_of(const DraftParams& params, int64_t index) {
  if (params.step.places == 0) return params.step_keys[index];
  return step_key(params.step.seeds[index], params.positions[index], 0);
}

// By one lane: what was drawn, and in a step where the row is kept.
__device__ __forceinline__ void put_token(const DraftParams& params, int64_t index, int64_t key,
                                          int64_t token) {
  params.tokens[index] = token;
  const int64_t slot = params.slot(index);
  if (params.step.places == 0 || slot < 0) return;
  params.step.tokens[params.kept_at(slot)] = token;
  params.step.step_keys[slot] = key;
}

// By the block that goes on: where the row is cut. Its sums become those of what is kept.
template <typename T>
__device__ __forceinline__ Whole cut_row(const DraftLaunch&, int64_t, const DraftRow<T, Whole>&,
                                         const RowLimits<Whole>&, unsigned char*) {
  return {};
}
template <typename T>
__device__ __forceinline__ Cut cut_row(const DraftLaunch& launch, int64_t index,
                                       const DraftRow<T, Cut>& uncut, const RowLimits<Cut>& limits,
                                       unsigned char* shared) {
  if (!limits.any()) return Cut::nothing();
  const DraftParams& params = launch.params;
  const int rank = static_cast<int>(params.affinity.rank);
  const int chunks = uncut.chunks();
  ChunkSum* sums = launch.chunks + index * chunks;
  const float threshold =
      threshold_of(uncut, sums, limits, reinterpret_cast<ThresholdScratch*>(shared));
  DraftRow<T, Cut> kept = uncut;
  kept.cut = limits.at(threshold);
  sum_kept_chunks(kept, sums, [&](int chunk, float (&z)[kPerLane], float largest) {
    sum_draft_chunk(kept, chunk, z, largest, params.affinity.spread, rank, sums,
                    launch.spread_sums + index * rank * chunks);
  });
  return kept.cut;
}

template <typename T, typename C>
__device__ __forceinline__ void finish_row(const DraftLaunch& launch, int64_t index,
                                           const DraftRow<T, C>& row, float temperature) {
  const DraftParams& params = launch.params;
  const int rank = static_cast<int>(params.affinity.rank);
  const int chunks = row.chunks();
  const Softmax softmax = merge_chunks(launch.chunks + index * chunks, chunks);
  const int64_t slot = params.slot(index);
  if (slot >= 0) {
    float* stats = params.stats + params.kept_at(slot) * stats_width<C>(params);
    if (temperature != 0.0f || !softmax.valid) {
      write_draft_stats(softmax, launch.spread_sums + index * rank * chunks, rank, stats);
    } else if (lane_index() < 2 + rank) {
      stats[lane_index()] = 0.0f;
    }
    if constexpr (C::kCuts) {
      const float threshold = temperature == 0.0f ? 0.0f : row.cut.threshold;
      if (lane_index() == 0) stats[2 + rank] = softmax.valid ? threshold : not_a_number();
    }
  }

  const int64_t key = key_of(params, index);
  int64_t token = -1;
  if (softmax.valid) {
    const int64_t position = later(params.positions[index], params.step.at());
    const auto words = [&](uint32_t attempt) {
      const uint32_t branch = params.branches == nullptr ? 0 : params.branches[index];
      return random_words(key, position, Purpose::kDraft, attempt, branch);
    };
    const PhiloxWords first = words(0);
    const int column =
        temperature == 0.0f ? argmax_column(row, softmax) : draw_column(row, softmax, first);
    if (row.is_dynamic(column)) {
      token = row.dynamic_tokens[row.dynamic_index(column)];
    } else if (temperature == 0.0f) {
      token = params.affinity.top[column];
    } else {
      token = warp_draw_target(params.affinity, column, first.word[2], words);
    }
  }
  if (lane_index() == 0) put_token(params, index, key, token);
}

template <typename T, typename C>
__global__ void __launch_bounds__(kMaxThreads, kBlocks) draft_kernel(const DraftLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  wait_for_earlier_kernels();
  const DraftParams& params = launch.params;
  const int64_t index = blockIdx.x / launch.splits;
  const int split = blockIdx.x % launch.splits;
  const int rank = static_cast<int>(params.affinity.rank);
  if (launch.splits > 1 && launch.shape.cluster <= 1 && threadIdx.x == blockDim.x - 1) {
    open_ticket(launch.tickets + index, launch.shape.stamp);
  }
  const float temperature = params.temperature[index];
  const RowLimits<C> limits(params.truncation, index,
                            static_cast<int>(params.draft.draft_size + params.draft.dynamic_size),
                            temperature);
  if (!usable_temperature(temperature) || !limits.usable()) {
    if (split != 0) return;
    const int width = stats_width<C>(params);
    const int64_t slot = params.slot(index);
    if (slot >= 0 && threadIdx.x < width) {
      params.stats[params.kept_at(slot) * width + threadIdx.x] = not_a_number();
    }
    if (threadIdx.x == 0) put_token(params, index, key_of(params, index), -1);
    return;
  }
  DraftRow<T, C> row(params.draft, index, temperature, limits.before());
  const int chunks = row.chunks();
  const int warps = blockDim.x / kWarp;
  ChunkSum* chunk_sums = launch.chunks + index * chunks;
  float* spread_sums = launch.spread_sums + index * rank * chunks;
  stream_chunks(row, ring_of_warp(shared), split * warps + warp_index(), launch.splits * warps,
                chunks, [&](int chunk, float (&z)[kPerLane], float largest) {
                  sum_draft_chunk(row, chunk, z, largest, params.affinity.spread, rank, chunk_sums,
                                  spread_sums);
                });
  keep_row(params, index, row, split, launch.splits);
  const bool goes_on = launch.shape.cluster > 1 ? first_block_of_cluster(launch.splits)
                                                : last_block(launch.tickets + index, launch.splits);
  if (!goes_on) return;
  row.cut = cut_row(launch, index, row, limits, shared);
  if (warp_index() == 0) finish_row(launch, index, row, temperature);
}

}  // namespace

#if !defined(__CUDACC_RTC__)

#if !defined(RDK_EMULATED)
cudaError_t compiled_for(int* capability) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, draft_kernel<float, Whole>);
  *capability = attributes.ptxVersion;
  return status;
}
#endif

#endif

RDK_START(Draft, DRAFT)

}  // namespace rdk
