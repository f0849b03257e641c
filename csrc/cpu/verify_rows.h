// The two distributions that verification compares at one position: the target's p, whose logits
// are read once for their sums, and the draft's q, evaluated only at the tokens that are asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

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
        index_(params.draft_rows.index ? params.draft_rows.index[draft] : draft),
        temperature_(params.draft_rows.temperature[sequence]),
        kind_(classify(threads, softmax)) {}

  bool usable() const { return kind_ != Kind::kUnusable; }

  float q(int64_t token) const {
    if (kind_ != Kind::kRow) return one_hot(token);
    return token_q(params_.affinity, *row_, stats_, token);
  }

  // q over ranges of tokens: evaluate() after one prepare().
  void prepare(const Threads& threads, RedistributedRow* redistributed) const {
    if (kind_ == Kind::kRow) {
      redistributed->assign(*row_, stats_, params_.affinity.rank, threads);
    }
  }
  void evaluate(const RedistributedRow& redistributed, int64_t begin, int64_t end, float* q) const {
    if (kind_ == Kind::kRow) {
      const RedistributedRow* row = &redistributed;
      return RedistributedRow::evaluate(&row, 1, params_.affinity, begin, end, &q);
    }
    for (int64_t token = begin; token < end; ++token) q[token - begin] = one_hot(token);
  }

 private:
  enum class Kind { kUnusable, kOneHot, kRow };

  float one_hot(int64_t token) const {
    return kind_ == Kind::kOneHot && token == token_ ? 1.0f : 0.0f;
  }

  Kind classify(const Threads& threads, Softmax* softmax) {
    if (token_ < 0 || token_ >= params_.affinity.target_size) return Kind::kUnusable;
    if (index_ == -1) return Kind::kOneHot;
    if (index_ < 0 || index_ >= params_.draft_rows.available) return Kind::kUnusable;
    if (temperature_ == 0.0f) return Kind::kOneHot;
    if (!usable_temperature(temperature_)) return Kind::kUnusable;
    row_.emplace(params_.draft, index_, temperature_);
    const int64_t width = 2 + params_.affinity.rank;
    if (params_.draft_rows.stats != nullptr) {
      const float* stats = params_.draft_rows.stats + index_ * params_.draft_rows.stats_width;
      std::copy_n(stats, width, stats_);
      if (params_.draft_rows.stats_width > width) {
        if (!(stats[width] < kInfinity)) return Kind::kUnusable;
        row_->cut(stats[width]);
      }
    } else {
      draft_stats(*row_, params_.affinity.spread, params_.affinity.rank, threads, softmax, stats_);
    }
    const bool finite =
        std::all_of(stats_, stats_ + width, [](float value) { return std::isfinite(value); });
    return finite && stats_[1] > 0.0f ? Kind::kRow : Kind::kUnusable;
  }

  const VerifyParams& params_;
  int64_t token_;
  int64_t index_;
  float temperature_;
  std::optional<DraftRow> row_;
  float stats_[2 + kMaxRank];
  Kind kind_;
};

}  // namespace rdk::cpu
