// The affinity A = S + U P as device code sees it: q(x) at one token, and a target token drawn from
// one row.
#pragma once

#include "draft_row.cuh"

namespace rdk {

// Who sums up q(x): one lane, every term in order, or the lanes of a warp, each a share of them.
struct OneLane {
  static constexpr int kStride = 1;
  __device__ static __forceinline__ int first() { return 0; }
  __device__ static __forceinline__ float total(float sum) { return sum; }
};
struct OneWarp {
  static constexpr int kStride = kWarp;
  __device__ static __forceinline__ int first() { return lane_index(); }
  __device__ static __forceinline__ float total(float sum) { return warp_sum(sum); }
};

// Adds exp(z - max) of the dynamic columns whose token this is.
template <typename Lanes, typename T, typename C>
__device__ __forceinline__ float add_dynamic(const DraftRow<T, C>& row, float max, int token,
                                             float mass) {
#pragma unroll 1
  for (int c = Lanes::first(); c < row.dynamic_size; c += Lanes::kStride) {
    if (row.dynamic_tokens[c] == token) mass += expf(row.dynamic_value(c) - max);
  }
  return mass;
}

// The entries of a column of S.
struct Entries {
  int begin;
  int end;
};

__device__ __forceinline__ Entries column_entries(const AffinityColumns& affinity, int token) {
  return {affinity.offsets[token], affinity.offsets[token + 1]};
}

// q(x) at one token from the row's stats (docs/design.md, "Redistribute"), the only place where
// kernels evaluate it. weight(draft) is exp(z - max) of a static column; with_dynamic(mass) adds
// that of the dynamic columns to the sum over S.
template <typename Lanes, typename Weight, typename WithDynamic>
__device__ __forceinline__ float token_q(const AffinityColumns& affinity, const Entries& column,
                                         const float* stats, int token, Weight&& weight,
                                         WithDynamic&& with_dynamic) {
  float mass = 0.0f;
#pragma unroll 1
  for (int entry = column.begin + Lanes::first(); entry < column.end; entry += Lanes::kStride) {
    mass += weight(affinity.drafts[entry]) * affinity.weights[entry];
  }
  float q = Lanes::total(with_dynamic(mass)) / stats[1];
#pragma unroll 1
  for (int r = 0; r < affinity.rank; ++r) {
    q += stats[2 + r] * affinity.prior[r * affinity.target_size + token];
  }
  return q;
}

// The same where nothing of the row is at hand but its logits.
template <typename Lanes, typename T, typename C>
__device__ __forceinline__ float token_q(const AffinityColumns& affinity, const DraftRow<T, C>& row,
                                         const float* stats, int token) {
  return token_q<Lanes>(
      affinity, column_entries(affinity, token), stats, token,
      [&](int draft) { return expf(row.static_value(draft) - stats[0]); },
      [&](float mass) { return add_dynamic<Lanes>(row, stats[0], token, mass); });
}

// A target token from row `draft` of A, by one warp. A masked column is never drawn and every other
// row's running sums end in exactly 2^32, more than any word, so each search ends inside its range.
// words(t) are those of try t.
template <typename Words>
__device__ __forceinline__ int warp_draw_target(const AffinityRows& affinity, int draft,
                                                uint32_t word, Words&& words) {
  const int rank = static_cast<int>(affinity.rank);
  const int begin = affinity.offsets[draft];
  const int count = affinity.offsets[draft + 1] - begin;
  const int entry = warp_first_above(affinity.cdf + begin, count, word);
  if (entry < count) return affinity.targets[begin + entry];
  const int64_t prior = warp_first_above(affinity.spread_cdf + draft * affinity.rank, rank, word);
  return warp_first_above(affinity.prior_cdf + prior * affinity.target_size,
                          static_cast<int>(affinity.target_size), words(1).word[0]);
}

}  // namespace rdk
