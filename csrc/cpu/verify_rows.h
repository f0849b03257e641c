// The two distributions that verification compares at one position: the target's p, whose logits
// are read once for their sums, and the draft's q, evaluated only at the tokens that are asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "../common/drafts.h"
#include "redistributed_row.h"
#include "target_row.h"

namespace rdk::cpu {

// q at one drafted position. Unusable: q = 0 everywhere and the draft is rejected.
class DraftDistribution {
 public:
  DraftDistribution(const VerifyParams& params, int64_t sequence, int64_t draft, int64_t token,
                    const Threads& threads, Softmax* softmax)
      : params_(params),
        token_(token),
        index_(params.draft_rows.row(draft)),
        temperature_(params.draft_rows.temperature[sequence]),
        kind_(classify(threads, softmax)) {}

  bool usable() const { return kind_ != DraftKind::kUnusable; }

  float q(int64_t token) const {
    if (kind_ != DraftKind::kRow) return one_hot(token);
    return token_q(params_.affinity, *row_, stats_, token);
  }

  // q over ranges of tokens: evaluate() after one prepare().
  void prepare(const Threads& threads, RedistributedRow* redistributed) const {
    if (kind_ == DraftKind::kRow) {
      redistributed->assign(*row_, stats_, params_.affinity.rank, threads);
    }
  }
  void evaluate(const RedistributedRow& redistributed, int64_t begin, int64_t end, float* q) const {
    if (kind_ == DraftKind::kRow) {
      const RedistributedRow* row = &redistributed;
      return RedistributedRow::evaluate(&row, 1, params_.affinity, begin, end, &q);
    }
    for (int64_t token = begin; token < end; ++token) q[token - begin] = one_hot(token);
  }

 private:
  float one_hot(int64_t token) const {
    return kind_ == DraftKind::kOneHot && token == token_ ? 1.0f : 0.0f;
  }

  DraftKind classify(const Threads& threads, Softmax* softmax) {
    const DraftKind kind = kind_of_draft(params_, token_, index_, temperature_);
    if (kind != DraftKind::kRow) return kind;
    row_.emplace(params_.draft, index_, temperature_);
    const int64_t width = 2 + params_.affinity.rank;
    if (params_.draft_rows.stats != nullptr) {
      const float* stats = params_.draft_rows.stats + index_ * params_.draft_rows.stats_width;
      std::copy_n(stats, width, stats_);
      if (params_.draft_rows.stats_width > width) {
        if (!(stats[width] < kInfinity)) return DraftKind::kUnusable;
        row_->cut(stats[width]);
      }
    } else {
      draft_stats(*row_, params_.affinity.spread, params_.affinity.rank, threads, softmax, stats_);
    }
    const bool finite =
        std::all_of(stats_, stats_ + width, [](float value) { return std::isfinite(value); });
    return finite && stats_[1] > 0.0f ? kind : DraftKind::kUnusable;
  }

  const VerifyParams& params_;
  int64_t token_;
  int index_;
  float temperature_;
  std::optional<DraftRow> row_;
  float stats_[2 + kMaxRank];
  DraftKind kind_;
};

}  // namespace rdk::cpu
