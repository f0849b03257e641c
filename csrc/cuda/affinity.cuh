// The affinity A = S + U P as device code sees it: q(x) at one token, and a target token drawn from
// one row.
#pragma once

#include "draft_row.cuh"

namespace rdk {

// The entries of a column of S.
struct Entries {
  int begin;
  int end;
};

RDK_DEVICE Entries column_entries(const AffinityColumns& affinity, int token) {
  return {affinity.offsets[token], affinity.offsets[token + 1]};
}

// q(x) at one token from the row's stats (docs/design.md, "Redistribute"), by one warp, of which
// each lane sums a share of the terms.
template <typename T, typename C>
RDK_DEVICE float token_q(const AffinityColumns& affinity, const Entries& column,
                         const DraftRow<T, C>& row, const float* stats, int token) {
  float mass = 0.0f;
#pragma unroll 1
  for (int entry = column.begin + lane_index(); entry < column.end; entry += kWarp) {
    mass += expf(row.static_value(affinity.drafts[entry]) - stats[0]) * affinity.weights[entry];
  }
#pragma unroll 1
  for (int c = lane_index(); c < row.dynamic_size; c += kWarp) {
    if (row.dynamic_tokens[c] == token) mass += expf(row.dynamic_value(c) - stats[0]);
  }
  float q = warp_sum(mass) / stats[1];
#pragma unroll 1
  for (int r = 0; r < affinity.rank; ++r) {
    q += stats[2 + r] * affinity.prior[r * affinity.target_size + token];
  }
  return q;
}

// A target token from row `draft` of A, by one warp. A masked column is never drawn and every other
// row's running sums end in exactly 2^32, more than any word, so each search ends inside its range.
// words(t) are those of try t. Sums and tokens of a row of few entries are asked for at once.
template <typename Words>
RDK_DEVICE int warp_draw_target(const AffinityRows& affinity, int draft, uint32_t word,
                                Words&& words) {
  const int rank = static_cast<int>(affinity.rank);
  const int begin = affinity.offsets[draft];
  const int count = affinity.offsets[draft + 1] - begin;
  if (count <= kWarp) {
    const int own = begin + lane_index();
    const bool there = lane_index() < count;
    const int64_t sum = there ? affinity.cdf[own] : 0;
    const int target = there ? affinity.targets[own] : -1;
    const unsigned above = __ballot_sync(kAllLanes, sum > static_cast<int64_t>(word));
    if (above != 0) return __shfl_sync(kAllLanes, target, __ffs(static_cast<int>(above)) - 1);
  } else {
    const int entry = warp_first_above(affinity.cdf + begin, count, word);
    if (entry < count) return affinity.targets[begin + entry];
  }
  const int64_t prior = warp_first_above(affinity.spread_cdf + draft * affinity.rank, rank, word);
  return warp_first_above(affinity.prior_cdf + prior * affinity.target_size,
                          static_cast<int>(affinity.target_size), words(1).word[0]);
}

}  // namespace rdk
