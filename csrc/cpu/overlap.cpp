// overlap: alpha = sum over x of min(p(x), q(x)), and which tokens have q(x) < p(x): all that its
// gradient needs of the rows of p and q, which are never built. Memory floor: V_t target logits,
// V_d + C drafter logits and the sparse structure read once, V_t bits written once. The target's
// row is read for its sums, and again from cache; columns of S are read once for several rows.

#include <algorithm>
#include <optional>

#include "operators.h"
#include "redistributed_row.h"
#include "target_row.h"

namespace rdk::cpu {
namespace {

constexpr int64_t kTile = 2 * kChunk;  // small enough that its q stays in the L1 cache

struct Row {
  int64_t index;
  float draft_max;
  float draft_sum;
  Softmax softmax;  // the target's
  RedistributedRow redistributed;
  std::optional<TargetDistribution> target;
  std::vector<float> sums;  // [chunks, 2 + R]: what Arithmetic::overlap gives
};

// Rows whose q is evaluated together.
struct Group {
  Softmax softmax;
  Row rows[kGroup];
  int64_t count = 0;
};

void write_no_distribution(const OverlapParams& params, int64_t index) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  params.alpha[index] = kNan;
  std::fill_n(params.below + index * params.words(), params.words(), 0u);
  std::fill_n(params.stats + index * params.stats_width(), params.stats_width(), kNan);
}

// False if either row has no distribution. A greedy drafter has no gradient, and is none here.
bool begin_row(const OverlapParams& params, int64_t index, const Threads& threads, Softmax* softmax,
               Row* row) {
  const AffinityColumns& affinity = params.affinity;
  const float temperature = params.draft_temperature[index];
  if (!usable_temperature(temperature) || temperature == 0.0f) return false;
  const DraftRow draft(params.draft, index, temperature);
  float stats[2 + kMaxRank];
  if (!draft_stats(draft, affinity.spread, affinity.rank, threads, softmax, stats)) return false;
  row->target.emplace(params.target, index, params.target_temperature[index], RowLimits(), threads,
                      &row->softmax, nullptr);
  if (!row->target->valid()) return false;
  row->index = index;
  row->draft_max = stats[0];
  row->draft_sum = stats[1];
  row->redistributed.assign(draft, stats, affinity.rank, threads);
  row->sums.resize(row->target->chunks() * (2 + affinity.rank));
  return true;
}

void compare_chunk(const OverlapParams& params, int64_t chunk, float* q, Row* row) {
  const AffinityColumns& affinity = params.affinity;
  const TargetDistribution& target = *row->target;
  const int64_t count = target.count(chunk);
  const int64_t begin = chunk * kChunk;
  alignas(64) float p[kChunk];
  if (target.greedy()) {
    for (int64_t i = 0; i < kChunk; ++i) p[i] = begin + i == target.argmax() ? 1.0f : 0.0f;
  } else {
    target.evaluate(chunk, p);
  }
  // Lanes are whole: what is behind the last column has neither p nor q.
  const int64_t end = std::min<int64_t>((count + 31) / 32 * 32, kChunk);
  std::fill(p + count, p + end, 0.0f);
  std::fill(q + count, q + end, 0.0f);
  const float* priors[kMaxRank];
  for (int64_t r = 0; r < affinity.rank; ++r) {
    priors[r] = affinity.prior + r * affinity.target_size + begin;
  }
  arithmetic().overlap(p, q, count, priors, affinity.rank,
                       params.below + row->index * params.words() + begin / 32,
                       row->sums.data() + chunk * (2 + affinity.rank));
}

void compare(const OverlapParams& params, const Threads& threads, Group* group) {
  const AffinityColumns& affinity = params.affinity;
  share(threads, (affinity.target_size + kTile - 1) / kTile, [&](int64_t tile) {
    alignas(64) float tiles[kGroup][kTile];
    const RedistributedRow* rows[kGroup];
    float* q[kGroup];
    for (int64_t i = 0; i < group->count; ++i) {
      rows[i] = &group->rows[i].redistributed;
      q[i] = tiles[i];
    }
    const int64_t begin = tile * kTile;
    const int64_t end = std::min(begin + kTile, affinity.target_size);
    RedistributedRow::evaluate(rows, group->count, affinity, begin, end, q);
    for (int64_t i = 0; i < group->count; ++i) {
      for (int64_t first = begin; first < end; first += kChunk) {
        compare_chunk(params, first / kChunk, q[i] + (first - begin), &group->rows[i]);
      }
    }
  });
}

void finish_row(const OverlapParams& params, const Row& row) {
  const int64_t width = 2 + params.affinity.rank;
  float* stats = params.stats + row.index * params.stats_width();
  stats[0] = row.draft_max;
  stats[1] = row.draft_sum;
  for (int64_t k = 0; k < width; ++k) {
    double total = 0.0;
    for (size_t i = k; i < row.sums.size(); i += width) total += row.sums[i];
    (k == 0 ? params.alpha[row.index] : stats[1 + k]) = static_cast<float>(total);
  }
}

}  // namespace

void overlap(const OverlapParams& params, const Threads& threads) {
  for_each_group<Group>(threads, params.rows, kGroup,
                        params.draft.draft_size + 2 * params.target.size, 0,
                        [&](int64_t first, int64_t end, const Threads& for_group, Group* group) {
                          group->count = 0;
                          for (int64_t index = first; index < end; ++index) {
                            Row* row = &group->rows[group->count];
                            if (begin_row(params, index, for_group, &group->softmax, row)) {
                              ++group->count;
                            } else {
                              write_no_distribution(params, index);
                            }
                          }
                          if (group->count > 0) compare(params, for_group, group);
                          for (int64_t i = 0; i < group->count; ++i)
                            finish_row(params, group->rows[i]);
                        });
}

}  // namespace rdk::cpu
