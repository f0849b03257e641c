// redistribute: q(x) = sum_i q'_i S[i, x] + sum_r s_r P[r, x] over the whole target vocabulary.
// Memory floor: the V_d + C logits and the sparse structure read once, V_t probabilities written
// once.

#include <algorithm>

#include "operators.h"
#include "redistributed_row.h"

namespace rdk::cpu {
namespace {

// The one-hot q of temperature 0; false where the row has no distribution.
bool redistribute_greedy(const DraftRow& row, const int32_t* row_top, int64_t target_size,
                         float* probs) {
  const int64_t column = argmax_column(row);
  if (column < 0) return false;
  std::fill(probs, probs + target_size, 0.0f);
  probs[row.is_dynamic(column) ? row.dynamic_token(row.dynamic_index(column)) : row_top[column]] =
      1.0f;
  return true;
}

// Rows whose q is evaluated together, so that the columns of S are read once for all of them.
struct Group {
  Softmax softmax;
  RedistributedRow rows[kGroup];
  const RedistributedRow* evaluated[kGroup];
  float* probs[kGroup];
  int64_t count = 0;
};

// Writes the row, or adds it to the group. False if it has no distribution.
bool begin_row(const RedistributeParams& params, int64_t index, const Threads& threads,
               float* probs, Group* group) {
  const AffinityColumns& affinity = params.affinity;
  const float temperature = params.temperature[index];
  if (!usable_temperature(temperature)) return false;
  DraftRow row(params.draft, index, temperature);
  if (temperature == 0.0f) {
    return redistribute_greedy(row, params.row_top, affinity.target_size, probs);
  }
  if (!truncate(RowLimits(params.truncation, index), threads, &row)) return false;
  float stats[2 + kMaxRank];
  if (!draft_stats(row, affinity.spread, affinity.rank, threads, &group->softmax, stats)) {
    return false;
  }
  RedistributedRow* redistributed = &group->rows[group->count];
  redistributed->assign(row, stats, affinity.rank, threads);
  group->evaluated[group->count] = redistributed;
  group->probs[group->count++] = probs;
  return true;
}

void evaluate(const AffinityColumns& affinity, const Group& group, const Threads& threads) {
  // Small enough that what one pass writes is still in the L1 cache when the next one reads it.
  constexpr int64_t kTile = 2048;
  share(threads, (affinity.target_size + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t begin = tile * kTile;
    const int64_t end = std::min(begin + kTile, affinity.target_size);
    float* q[kGroup];
    for (int64_t i = 0; i < group.count; ++i) q[i] = group.probs[i] + begin;
    RedistributedRow::evaluate(group.evaluated, group.count, affinity, begin, end, q);
  });
}

}  // namespace

void redistribute(const RedistributeParams& params, const Threads& threads) {
  const int64_t size = params.affinity.target_size;
  for_each_group<Group>(threads, params.rows, kGroup, params.draft.draft_size + size, 0,
                        [&](int64_t first, int64_t end, const Threads& for_group, Group* group) {
                          group->count = 0;
                          for (int64_t index = first; index < end; ++index) {
                            float* probs = params.probs + index * size;
                            if (!begin_row(params, index, for_group, probs, group)) {
                              std::fill(probs, probs + size,
                                        std::numeric_limits<float>::quiet_NaN());
                            }
                          }
                          if (group->count > 0) evaluate(params.affinity, *group, for_group);
                        });
}

}  // namespace rdk::cpu
