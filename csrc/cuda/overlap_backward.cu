// overlap_backward: alpha by the drafter's logits, q'_i (A_i(M) - Q(M)) / T, M the tokens with
// q < p. Memory floor: V_d + C logits and V_t bits read once, V_d + C gradients written once; the
// rows of S come from the L2 cache. No sum is shared, so a column needs no other one. A lane takes
// a column: kept tokens have one entry of S, next to those of the lane's neighbours. Rows that are
// longer, those of virtual tokens, are summed by the whole warp, one after the other.

#include "overlap_backward.h"

#include "draft_row.cuh"
#include "launch_kernel.cuh"

namespace rdk {
namespace {

constexpr int kThreads = OverlapBackwardLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kShort = 8;  // entries that a lane sums by itself

// What all columns of a row share.
struct GradRow {
  const uint32_t* below;
  const float* stats;
  float factor;  // the gradient of alpha, over the temperature
  bool valid;
};

__device__ __forceinline__ bool is_below(const GradRow& row, int token) {
  return (__ldg(row.below + token / 32) >> (token % 32) & 1u) != 0;
}

// The entry's mass if its token is in M. Running sums begin anew in each row of S.
__device__ __forceinline__ float entry_mass(const AffinityRows& affinity, const GradRow& row,
                                            int entry, int begin) {
  if (!is_below(row, affinity.targets[entry])) return 0.0f;
  constexpr float kTwoToMinus32 = 2.3283064e-10f;
  const int64_t before = entry > begin ? affinity.cdf[entry - 1] : 0;
  return static_cast<float>(affinity.cdf[entry] - before) * kTwoToMinus32;
}

// By a warp: S_i(M) of each lane's column.
__device__ __forceinline__ float sparse_mass(const AffinityRows& affinity, const GradRow& row,
                                             int column, int size) {
  const int begin = column < size ? affinity.offsets[column] : 0;
  const int end = column < size ? affinity.offsets[column + 1] : 0;
  float mass = 0.0f;
  unsigned lanes = __ballot_sync(kAllLanes, end - begin > kShort);
  if (end - begin <= kShort) {
#pragma unroll 1
    for (int entry = begin; entry < end; ++entry) mass += entry_mass(affinity, row, entry, begin);
  }
#pragma unroll 1
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    const int first = __shfl_sync(kAllLanes, begin, lane);
    const int last = __shfl_sync(kAllLanes, end, lane);
    float sum = 0.0f;
#pragma unroll 1
    for (int entry = first + lane_index(); entry < last; entry += kWarp) {
      sum += entry_mass(affinity, row, entry, first);
    }
    sum = warp_sum(sum);
    if (lane_index() == lane) mass = sum;
  }
  return mass;
}

// Of a column with this z, given A_i(M).
__device__ __forceinline__ float gradient(const GradRow& row, float z, float mass) {
  if (!row.valid) return 0.0f;
  return expf(z - row.stats[0]) / row.stats[1] * (mass - row.stats[2]) * row.factor;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, OverlapBackwardLaunch::kBlocks)
    overlap_backward_kernel(const OverlapBackwardLaunch launch) {
  wait_for_earlier_kernels();
  const OverlapBackwardParams& params = launch.params;
  const AffinityRows& affinity = params.affinity;
  const int64_t index = blockIdx.x / launch.splits;
  const int split = blockIdx.x % launch.splits;
  const int rank = static_cast<int>(affinity.rank);
  const float temperature = params.draft_temperature[index];
  const DraftRow<T, Whole> draft(params.draft, index, temperature, Whole{});
  const float* stats = params.stats + index * params.stats_width();
  const GradRow row{params.below + index * params.words(), stats, params.grad[index] / temperature,
                    usable_temperature(temperature) && temperature > 0.0f && stats[1] > 0.0f};

  T* grads = static_cast<T*>(params.draft_grads) + index * draft.size;
  const int warps = launch.splits * kWarps;
  for (int first = (split * kWarps + warp_index()) * kWarp; first < draft.size;
       first += warps * kWarp) {
    const int column = first + lane_index();
    float mass = sparse_mass(affinity, row, column, draft.size);
    if (column >= draft.size) continue;
    for (int r = 0; r < rank; ++r) mass += affinity.spread[column * rank + r] * stats[3 + r];
    store_rounded(gradient(row, draft.static_value(column), mass), grads + column);
  }

  T* dynamic = static_cast<T*>(params.dynamic_grads) + index * draft.dynamic_size;
  for (int c = split * kThreads + threadIdx.x; c < draft.dynamic_size;
       c += launch.splits * kThreads) {
    float value = 0.0f;
    if (draft.used(c)) {
      const float mass = is_below(row, draft.dynamic_tokens[c]) ? 1.0f : 0.0f;
      value = gradient(row, draft.dynamic_value(c), mass);
    }
    store_rounded(value, dynamic + c);
  }
}

}  // namespace

RDK_START(OverlapBackward, OVERLAP_BACKWARD)

}  // namespace rdk
