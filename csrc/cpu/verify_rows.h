// The two distributions that verification compares at one position: the target's p, whose logits
// are read once for their sums, and the draft's q, evaluated only at the tokens that are asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "../common/philox.h"
#include "redistributed_row.h"
#include "truncation.h"

namespace rdk::cpu {

class TargetRow {
 public:
  // Of all tokens, or of those that the row of params.allowed has a bit for.
  TargetRow(const VerifyParams& params, int64_t row, float temperature, bool masks)
      : logits_(params.target_dtype, params.target_logits, row),
        allowed_(masks && params.allowed.data != nullptr
                     ? static_cast<const uint32_t*>(params.allowed.data) +
                           params.allowed.offset(row)
                     : nullptr),
        size_(params.affinity.target_size),
        temperature_(temperature == 0.0f ? 1.0f : temperature) {}

  // From here on, what is below the threshold has z = -inf.
  void cut(const Threshold& threshold) { threshold_ = &threshold; }

  int64_t chunks() const { return chunks_of(size_); }
  int64_t count(int64_t chunk) const { return chunk_count(size_, chunk); }
  bool empty(int64_t chunk) const {
    return threshold_ != nullptr && threshold_->maxima()[chunk] < threshold_->value();
  }
  bool few() const { return threshold_ != nullptr; }

  float scale(int64_t chunk, float* z) const {
    if (threshold_ != nullptr) return threshold_->read(chunk, z);
    const uint32_t* allowed = allowed_ == nullptr ? nullptr : allowed_ + chunk * (kChunk / 32);
    return arithmetic().scale({logits_.dtype(), logits_.at(chunk * kChunk), count(chunk),
                               temperature_, nullptr, false, allowed},
                              z);
  }

  float value(int64_t token) const {
    if (allowed_ != nullptr && !(allowed_[token / 32] >> (token % 32) & 1)) return -kInfinity;
    const float z = logits_[token] / temperature_;
    return threshold_ != nullptr && z < threshold_->value() ? -kInfinity : z;
  }

 private:
  LogitsRow logits_;
  const uint32_t* allowed_;
  int64_t size_;
  float temperature_;
  const Threshold* threshold_ = nullptr;
};

// ln of a token's probability, from its z and the sums of its row.
inline float log_probability(float z, const Softmax& softmax) {
  const double difference = static_cast<double>(z) - static_cast<double>(softmax.max);
  return static_cast<float>(difference - std::log(static_cast<double>(softmax.sum)));
}

// p at one position: one-hot on the argmax at temperature 0.
class TargetDistribution {
 public:
  TargetDistribution(const VerifyParams& params, int64_t row, float temperature,
                     const RowLimits& limits, const Threads& threads, Softmax* softmax,
                     Threshold* threshold)
      : row_(params, row, temperature, true),
        greedy_(temperature == 0.0f),
        raw_(temperature == 1.0f && params.allowed.data == nullptr && !limits.any()),
        softmax_(*softmax) {
    if (!usable_temperature(temperature)) return;
    if (greedy_) {
      argmax_ = argmax_column(row_);
      valid_ = argmax_ >= 0;
      return;
    }
    if (limits.any()) {
      if (!threshold->find(row_, limits, threads)) return;
      row_.cut(*threshold);
    }
    summarize(row_, threads, softmax);
    valid_ = softmax->valid;
  }

  bool valid() const { return valid_; }
  bool greedy() const { return greedy_; }
  int64_t argmax() const { return argmax_; }

  float p(int64_t token) const {
    if (greedy_) return token == argmax_ ? 1.0f : 0.0f;
    return exponential(row_.value(token) - softmax_.max) / softmax_.sum;
  }

  // Whether p is the softmax of the raw logits.
  bool raw() const { return raw_; }

  float log_p(int64_t token) const {
    if (greedy_) return token == argmax_ ? 0.0f : -kInfinity;
    return log_probability(row_.value(token), softmax_);
  }

  int64_t chunks() const { return row_.chunks(); }
  int64_t count(int64_t chunk) const { return row_.count(chunk); }

  // p over one chunk.
  void evaluate(int64_t chunk, float* p) const {
    row_.scale(chunk, p);
    arithmetic().exponentiate(p, count(chunk), softmax_.max);
    for (int64_t i = 0; i < count(chunk); ++i) p[i] /= softmax_.sum;
  }

  // Of the words of one random draw, the first picks the chunk and the second the column.
  int64_t draw(const PhiloxWords& words) const {
    if (greedy_) return argmax_;
    return draw_column(row_, softmax_, uniform(words.word[0]), uniform(words.word[1]));
  }

 private:
  TargetRow row_;
  bool greedy_;
  bool raw_;
  const Softmax& softmax_;
  int64_t argmax_ = -1;
  bool valid_ = false;
};

// q at one drafted position. Unusable: q = 0 everywhere and the draft is rejected.
class DraftDistribution {
 public:
  DraftDistribution(const VerifyParams& params, int64_t sequence, int64_t draft, int64_t token,
                    const Threads& threads, Softmax* softmax)
      : params_(params),
        token_(token),
        index_(params.draft_rows ? params.draft_rows[draft] : draft),
        temperature_(params.draft_temperature[sequence]),
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
    if (index_ < 0 || index_ >= params_.draft_rows_available) return Kind::kUnusable;
    if (temperature_ == 0.0f) return Kind::kOneHot;
    if (!usable_temperature(temperature_)) return Kind::kUnusable;
    row_.emplace(params_.draft, index_, temperature_);
    const int64_t width = 2 + params_.affinity.rank;
    if (params_.draft_stats != nullptr) {
      const float* stats = params_.draft_stats + index_ * params_.draft_stats_width;
      std::copy_n(stats, width, stats_);
      if (params_.draft_stats_width > width) {
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
