// The target's p at one row: its logits are read once for their sums, then at the tokens that are
// asked for. Whatever verifies drafts takes it from here, so a row has the same bits everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/philox.h"
#include "../common/shards.h"
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

// The sums of all chunks of a row as ranks hand them round, and z at its draft.
struct RowSums {
  const float* pairs;  // (max, sum); at temperature 0 (max, its first column)
  int64_t chunks;
  int64_t target_size;

  float drafted_z() const { return pairs[2 * chunks]; }

  bool merge(Softmax* softmax) const {
    softmax->chunks.resize(chunks);
    for (int64_t c = 0; c < chunks; ++c) softmax->chunks[c] = {pairs[2 * c], pairs[2 * c + 1]};
    softmax->merge();
    return softmax->valid && softmax->sum > 0.0f && softmax->sum < kInfinity;
  }

  // -1 where the row has no distribution.
  int64_t argmax() const {
    float best = -kInfinity;
    int64_t token = -1;
    for (int64_t c = 0; c < chunks; ++c) {
      if (std::isnan(pairs[2 * c])) return -1;
      if (pairs[2 * c] > best) {
        best = pairs[2 * c];
        token = c * kChunk + column_in_chunk(pairs[2 * c + 1]);
      }
    }
    return token < target_size ? token : -1;
  }
};

// p at one position: one-hot on the argmax at temperature 0.
class TargetDistribution {
 public:
  // Of a row of which only some chunks are here, from `first_chunk` on. p is known at its draft,
  // and what is asked of any other token has to be in these chunks.
  TargetDistribution(const TargetRows& rows, int64_t row, float temperature, const RowSums& sums,
                     int64_t first_chunk, int64_t drafted, Softmax* softmax)
      : row_(rows, row, temperature, false),
        greedy_(temperature == 0.0f),
        raw_(false),
        softmax_(*softmax),
        first_chunk_(first_chunk),
        drafted_(drafted),
        drafted_z_(sums.drafted_z()) {
    if (!usable_temperature(temperature)) return;
    if (greedy_) argmax_ = sums.argmax();
    valid_ = greedy_ ? argmax_ >= 0 : sums.merge(softmax);
  }

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
    const float z = token == drafted_ ? drafted_z_ : row_.value(token - first_chunk_ * kChunk);
    return exponential(z - softmax_.max) / softmax_.sum;
  }

  // Whether p is the softmax of the raw logits.
  bool raw() const { return raw_; }

  float log_p(int64_t token) const {
    if (greedy_) return token == argmax_ ? 0.0f : -kInfinity;
    return log_probability(row_.value(token), softmax_);
  }

  // The chunks that are here.
  int64_t first_chunk() const { return first_chunk_; }
  int64_t chunks() const { return row_.chunks(); }
  int64_t count(int64_t chunk) const { return row_.count(chunk - first_chunk_); }

  // p over one chunk.
  void evaluate(int64_t chunk, float* p) const {
    row_.scale(chunk - first_chunk_, p);
    arithmetic().exponentiate(p, count(chunk), softmax_.max);
    for (int64_t i = 0; i < count(chunk); ++i) p[i] /= softmax_.sum;
  }

  // Of the words of one random draw, the first picks the chunk and the second the column.
  int64_t draw_chunk(const PhiloxWords& words) const {
    return softmax_.draw_chunk(uniform(words.word[0]));
  }
  // -1 where the chunk is not here.
  int64_t draw(const PhiloxWords& words) const {
    if (greedy_) return argmax_;
    const int64_t chunk = draw_chunk(words);
    const int64_t here = chunk - first_chunk_;
    if (here < 0 || here >= chunks()) return -1;
    return chunk * kChunk + draw_in_chunk(row_, here, uniform(words.word[1]));
  }

 private:
  TargetRow row_;
  bool greedy_;
  bool raw_;
  const Softmax& softmax_;
  int64_t first_chunk_ = 0;
  int64_t drafted_ = -1;
  float drafted_z_ = 0.0f;
  int64_t argmax_ = -1;
  bool valid_ = false;
};

}  // namespace rdk::cpu
