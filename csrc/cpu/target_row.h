// The target's p at one row: its logits are read once for their sums, then at the tokens that are
// asked for. Whatever verifies drafts takes it from here, so a row has the same bits everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/philox.h"
#include "../common/validity.h"
#include "logits.h"
#include "softmax.h"
#include "truncation.h"

namespace rdk::cpu {

class TargetRow {
 public:
  // Of all tokens, or of those that the row of rows.allowed has a bit for.
  TargetRow(const TargetRows& rows, int64_t row, float temperature, bool masks)
      : logits_(rows.dtype, rows.logits, row),
        allowed_(masks && rows.allowed.data != nullptr
                     ? static_cast<const uint32_t*>(rows.allowed.data) + rows.allowed.offset(row)
                     : nullptr),
        size_(rows.size),
        temperature_(temperature == 0.0f ? 1.0f : temperature) {}

  // From here on, what is below the threshold has z = -inf.
  void cut(const Threshold& threshold) { threshold_ = &threshold; }

  int64_t chunks() const { return chunks_of(size_); }
  int64_t count(int64_t chunk) const { return chunk_count(size_, chunk); }
  bool empty(int64_t chunk) const {
    return threshold_ != nullptr && threshold_->maxima()[chunk] < threshold_->value();
  }

  float scale(int64_t chunk, float* z) const {
    const float max = scale_some(chunk, 0, count(chunk), z);
    if (threshold_ == nullptr) return max;
    arithmetic().cut(z, count(chunk), threshold_->value(), z);
    return empty(chunk) ? -kInfinity : max;
  }

  // Before the cut, from `first` on, a multiple of 32 in the chunk.
  float scale_some(int64_t chunk, int64_t first, int64_t count, float* z) const {
    const int64_t begin = chunk * kChunk + first;
    const uint32_t* allowed = allowed_ == nullptr ? nullptr : allowed_ + begin / 32;
    return arithmetic().scale(
        {logits_.dtype(), logits_.at(begin), count, temperature_, nullptr, false, allowed}, z);
  }

  ChunkSum exponentiate(int64_t chunk, float* weights) const {
    const float max = scale_some(chunk, 0, count(chunk), weights);
    if (threshold_ != nullptr) return threshold_->exponentiate(chunk, weights);
    return {max, arithmetic().exponentiate(weights, count(chunk), chunk_shift(max))};
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
  TargetDistribution(const TargetRows& rows, int64_t row, float temperature,
                     const RowLimits& limits, const Threads& threads, Softmax* softmax,
                     Threshold* threshold)
      : row_(rows, row, temperature, true),
        greedy_(temperature == 0.0f),
        raw_(temperature == 1.0f && rows.allowed.data == nullptr && !limits.any()),
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

}  // namespace rdk::cpu
