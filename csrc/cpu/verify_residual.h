// The residual max(c p - q, 0) of one position, summed over all tokens: the direct pass, after
// proposals from p have failed.
#pragma once

#include <vector>

#include "verify_rows.h"

namespace rdk::cpu {

class ResidualRow {
 public:
  ResidualRow(const TargetDistribution& target, const DraftDistribution& draft, float factor,
              const Threads& threads)
      : target_(target), draft_(draft), factor_(factor) {
    draft.prepare(threads, &redistributed_);
  }

  // Over one chunk; returns its sum.
  float evaluate(int64_t chunk, float* residual) const {
    const int64_t begin = chunk * kChunk;
    const int64_t count = target_.count(chunk);
    alignas(64) float q[kChunk] = {};
    target_.evaluate(chunk, residual);
    for (int64_t i = 0; i < count; ++i) residual[i] *= factor_;
    draft_.evaluate(redistributed_, begin, begin + count, q);
    return arithmetic().residual(residual, q, count);
  }

  // The index of a column in a chunk, of which `residual` is what evaluate wrote.
  int64_t draw_in_chunk(int64_t chunk, const float* residual, float u) const {
    return draw_index(target_.count(chunk), u, [&](int64_t i) { return residual[i]; });
  }

  const TargetDistribution& target() const { return target_; }

 private:
  const TargetDistribution& target_;
  const DraftDistribution& draft_;
  float factor_;
  RedistributedRow redistributed_;
};

class Residual {
 public:
  Residual(const TargetDistribution& target, const DraftDistribution& draft, float factor,
           const Threads& threads)
      : row_(target, draft, factor, threads), sums_(target.chunks()) {
    share(threads, target.chunks(), [&](int64_t chunk) {
      alignas(64) float residual[kChunk];
      sums_[chunk] = row_.evaluate(chunk, residual);
    });
  }

  double mass() const {
    double sum = 0.0;
    for (const float chunk : sums_) sum += chunk;
    return sum;
  }

  // Or from p if nothing is left (p = q up to rounding).
  int64_t draw(const PhiloxWords& words) const {
    const int64_t chunk =
        draw_index(sums_.size(), uniform(words.word[0]), [&](int64_t c) { return sums_[c]; });
    if (chunk < 0) return row_.target().draw(words);
    alignas(64) float residual[kChunk];
    row_.evaluate(chunk, residual);
    return chunk * kChunk + row_.draw_in_chunk(chunk, residual, uniform(words.word[1]));
  }

 private:
  ResidualRow row_;
  std::vector<float> sums_;
};

}  // namespace rdk::cpu
