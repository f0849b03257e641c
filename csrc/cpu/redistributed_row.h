// q of a row at one target token, and of several rows over a range of tokens: gathered over the
// columns of S, so that each entry is summed in one fixed order (docs/design.md, "Redistribute").
#pragma once

#include <algorithm>
#include <vector>

#include "draft_row.h"

namespace rdk::cpu {

// At one token: what RedistributedRow gives there, to the bit, without a pass over the row.
inline float token_q(const AffinityColumns& affinity, const DraftRow& row, const float* stats,
                     int64_t token) {
  float q = 0.0f;
  for (int64_t entry = affinity.offsets[token]; entry < affinity.offsets[token + 1]; ++entry) {
    q += exponential(row.static_value(affinity.drafts[entry]) - stats[0]) * affinity.weights[entry];
  }
  for (int64_t c = 0; c < row.dynamic_size(); ++c) {
    if (row.dynamic_token(c) == token) q += exponential(row.dynamic_value(c) - stats[0]);
  }
  arithmetic().finish_columns(affinity, stats[1], stats + 2, token, token + 1, &q);
  return q;
}

class RedistributedRow {
 public:
  // stats: the row's, as draft_stats gives them. Memory is kept from one row to the next.
  void assign(const DraftRow& row, const float* stats, int64_t rank, const Threads& threads) {
    std::copy_n(stats, 2 + rank, stats_);
    exponentials_.resize(row.static_chunks() * kChunk);
    share(threads, row.static_chunks(), [&](int64_t chunk) {
      float* z = exponentials_.data() + chunk * kChunk;
      row.scale(chunk, z);
      arithmetic().exponentiate(z, row.count(chunk), stats_[0]);
    });
    dynamic_.clear();
    for (int64_t c = 0; c < row.dynamic_size(); ++c) {
      if (row.dynamic_used(c)) {
        dynamic_.push_back({row.dynamic_token(c), exponential(row.dynamic_value(c) - stats_[0])});
      }
    }
  }

  // q[row][x - begin] of several rows, at most kGroup, for the target tokens x of [begin, end).
  static void evaluate(const RedistributedRow* const* rows, int64_t count,
                       const AffinityColumns& affinity, int64_t begin, int64_t end,
                       float* const* q) {
    const float* exponentials[kGroup];
    for (int64_t i = 0; i < count; ++i) exponentials[i] = rows[i]->exponentials_.data();
    arithmetic().column_masses(affinity, exponentials, count, begin, end, q);
    for (int64_t i = 0; i < count; ++i) {
      for (const DynamicMass& column : rows[i]->dynamic_) {
        if (begin <= column.token && column.token < end) q[i][column.token - begin] += column.mass;
      }
      const float* stats = rows[i]->stats_;
      arithmetic().finish_columns(affinity, stats[1], stats + 2, begin, end, q[i]);
    }
  }

 private:
  struct DynamicMass {
    int64_t token;
    float mass;
  };

  float stats_[2 + kMaxRank];
  std::vector<float> exponentials_;
  std::vector<DynamicMass> dynamic_;
};

}  // namespace rdk::cpu
