// The affinity A = S + U P as device code sees it: q(x) at one token, and a target token drawn from
// one row.
#pragma once

#include "draft_row.cuh"

namespace rdk {

// q(x) at one token by one warp, from the row's stats: a column of S, R products, and a look
// through the dynamic tokens.
template <typename T>
__device__ __forceinline__ float warp_q(const AffinityColumns& affinity, const DraftRow<T>& row,
                                        const float* stats, int token) {
  float mass = 0.0f;
  const int end = affinity.offsets[token + 1];
  for (int entry = affinity.offsets[token] + lane_index(); entry < end; entry += kWarp) {
    mass += expf(row.static_value(affinity.drafts[entry]) - stats[0]) * affinity.weights[entry];
  }
  for (int c = lane_index(); c < row.dynamic_size; c += kWarp) {
    if (row.dynamic_tokens[c] == token) mass += expf(row.dynamic_value(c) - stats[0]);
  }
  float q = warp_sum(mass) / stats[1];
  for (int r = 0; r < affinity.rank; ++r) {
    q += stats[2 + r] * affinity.prior[r * affinity.target_size + token];
  }
  return q;
}

// A target token from row `draft` of A, by one warp. A masked column is never drawn and every other
// row's running sums end in exactly 2^32, more than any word, so each search ends inside its range.
__device__ __forceinline__ int warp_draw_target(const AffinityRows& affinity, int draft,
                                                int64_t seed, int64_t position, uint32_t word) {
  const int rank = static_cast<int>(affinity.rank);
  const int begin = affinity.offsets[draft];
  const int count = affinity.offsets[draft + 1] - begin;
  const int entry = warp_first_above(affinity.cdf + begin, count, word);
  if (entry < count) return affinity.targets[begin + entry];
  const int64_t prior = warp_first_above(affinity.spread_cdf + draft * affinity.rank, rank, word);
  const uint32_t prior_word = random_words(seed, position, Purpose::kDraft, 1).word[0];
  return warp_first_above(affinity.prior_cdf + prior * affinity.target_size,
                          static_cast<int>(affinity.target_size), prior_word);
}

}  // namespace rdk
