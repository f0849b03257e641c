// draft: the drafter token i ~ q' by a two-level draw, then the target token x ~ A[i] by a search
// in the row's running sums. q is never built (docs/design.md section 3). Memory floor: the V_d + C
// logits of each row, once.

#include <algorithm>
#include <cstring>

#include "../common/philox.h"
#include "draft_row.h"
#include "operators.h"

namespace rdk::cpu {
namespace {

// A masked column is never drawn and every other row's running sums end in exactly 2^32, more than
// any 32-bit word, so each search ends inside its range.
int64_t first_above(const int64_t* cdf, int64_t count, uint32_t word) {
  return std::upper_bound(cdf, cdf + count, static_cast<int64_t>(word)) - cdf;
}

// words(t) are those of try t.
template <typename Words>
int64_t draw_target(const AffinityRows& affinity, int64_t draft, uint32_t word,
                    const Words& words) {
  const int64_t begin = affinity.offsets[draft];
  const int64_t count = affinity.offsets[draft + 1] - begin;
  const int64_t entry = first_above(affinity.cdf + begin, count, word);
  if (entry < count) return affinity.targets[begin + entry];
  const int64_t prior =
      first_above(affinity.spread_cdf + draft * affinity.rank, affinity.rank, word);
  return first_above(affinity.prior_cdf + prior * affinity.target_size, affinity.target_size,
                     words(1).word[0]);
}

// Stores count elements of a row, unless they are there already.
void keep(const Rows& rows, int64_t index, int64_t count, int64_t bytes, void* kept, int64_t at) {
  const char* from = static_cast<const char*>(rows.data) + rows.offset(index) * bytes;
  char* to = static_cast<char*>(kept) + at * count * bytes;
  if (from != to) std::memcpy(to, from, count * bytes);
}

void keep_row(const DraftParams& params, int64_t index, int64_t at) {
  const DraftColumns& draft = params.draft;
  const int64_t bytes = draft.dtype == Dtype::kFloat32 ? 4 : 2;
  keep(draft.logits, index, draft.draft_size, bytes, params.step.logits, at);
  if (draft.dynamic_size == 0) return;
  keep(draft.dynamic_tokens, index, draft.dynamic_size, 4, params.step.dynamic_tokens, at);
  keep(draft.dynamic_logits, index, draft.dynamic_size, bytes, params.step.dynamic_logits, at);
}

int64_t draft_row(const DraftParams& params, int64_t index, int64_t key, float* stats,
                  const Threads& threads, Softmax* softmax) {
  const int64_t rank = params.affinity.rank;
  const float temperature = params.temperature[index];
  DraftRow row(params.draft, index, temperature);

  std::fill_n(stats, params.stats_width, std::numeric_limits<float>::quiet_NaN());
  if (!usable_temperature(temperature)) return -1;

  const int64_t position = later(params.positions[index], params.step.at());
  const auto words = [&](uint32_t attempt) {
    const uint32_t branch = params.branches == nullptr ? 0 : params.branches[index];
    return random_words(key, position, Purpose::kDraft, attempt, branch);
  };
  int64_t column;
  PhiloxWords first = {};
  if (temperature == 0.0f) {
    column = argmax_column(row);
    if (column < 0) return -1;
    std::fill_n(stats, params.stats_width, 0.0f);
  } else {
    if (!truncate(RowLimits(params.truncation, index), threads, &row)) return -1;
    if (!draft_stats(row, params.affinity.spread, rank, threads, softmax, stats)) return -1;
    if (params.truncation.given) stats[2 + rank] = row.threshold();
    first = words(0);
    column = draw_column(row, *softmax, uniform(first.word[0]), uniform(first.word[1]));
  }
  if (row.is_dynamic(column)) return row.dynamic_token(row.dynamic_index(column));
  return temperature == 0.0f ? params.affinity.top[column]
                             : draw_target(params.affinity, column, first.word[2], words);
}

int64_t draft_and_keep(const DraftParams& params, int64_t index, const Threads& threads,
                       Softmax* softmax) {
  const StepRows& step = params.step;
  const int64_t slot = params.slot(index);
  const int64_t at = params.kept_at(slot);
  float not_kept[3 + kMaxRank];
  float* stats = slot < 0 ? not_kept : params.stats + at * params.stats_width;
  if (step.places == 0) {
    return draft_row(params, index, params.step_keys[index], stats, threads, softmax);
  }
  const int64_t key = step_key(step.seeds[index], params.positions[index], 0);
  const int64_t token = draft_row(params, index, key, stats, threads, softmax);
  if (slot < 0) return token;
  keep_row(params, index, at);
  step.step_keys[slot] = key;
  return step.tokens[at] = token;
}

}  // namespace

void draft(const DraftParams& params, const Threads& threads) {
  for_each_row<Softmax>(threads, params.rows, params.draft.draft_size,
                        [&](int64_t index, const Threads& for_row, Softmax* softmax) {
                          params.tokens[index] = draft_and_keep(params, index, for_row, softmax);
                        });
}

}  // namespace rdk::cpu
