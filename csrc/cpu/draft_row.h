// One row of the drafter's softmax: V_d static columns with their bias, then, in chunks of their
// own, the row's dynamic columns (docs/design.md, "Dynamic tokens").
#pragma once

#include <algorithm>
#include <cstdint>

#include "logits.h"
#include "softmax.h"
#include "truncation.h"

namespace rdk::cpu {

class DraftRow {
 public:
  // At temperature 0 the columns are the logits themselves and the bias only masks.
  DraftRow(const DraftColumns& columns, int64_t row, float temperature)
      : columns_(columns),
        logits_(columns.dtype, columns.logits, row),
        dynamic_logits_(columns.dtype, columns.dynamic_logits, row),
        dynamic_tokens_(columns.dynamic_size == 0
                            ? nullptr
                            : static_cast<const int32_t*>(columns.dynamic_tokens.data) +
                                  columns.dynamic_tokens.offset(row)),
        greedy_(temperature == 0.0f),
        temperature_(greedy_ ? 1.0f : temperature),
        static_chunks_(chunks_of(columns.draft_size)) {}

  int64_t static_chunks() const { return static_chunks_; }
  int64_t chunks() const { return static_chunks_ + chunks_of(columns_.dynamic_size); }

  int64_t count(int64_t chunk) const {
    return chunk < static_chunks_ ? chunk_count(columns_.draft_size, chunk)
                                  : chunk_count(columns_.dynamic_size, chunk - static_chunks_);
  }

  bool empty(int64_t) const { return false; }

  // From here on, columns below the threshold have z = -inf (docs/design.md, "Truncation").
  void cut(float threshold) { threshold_ = threshold; }

  float scale(int64_t chunk, float* z) const {
    const float max = scale_some(chunk, 0, count(chunk), z);
    if (threshold_ == -kInfinity) return max;
    arithmetic().cut(z, count(chunk), threshold_, z);
    return max < threshold_ ? -kInfinity : max;
  }

  // Before the cut, from `first` on in the chunk.
  float scale_some(int64_t chunk, int64_t first, int64_t count, float* z) const {
    return chunk >= static_chunks_
               ? scale_dynamic((chunk - static_chunks_) * kChunk + first, count, z)
               : scale_static(chunk * kChunk + first, count, z);
  }

  ChunkSum exponentiate(int64_t chunk, float* weights) const {
    const float max = scale_some(chunk, 0, count(chunk), weights);
    if (threshold_ > -kInfinity) {
      return exponentiate_kept(weights, count(chunk), max, threshold_, weights);
    }
    return {max, arithmetic().exponentiate(weights, count(chunk), chunk_shift(max))};
  }

  // Columns are numbered as the chunks are: dynamic ones begin at a multiple of 1024.
  bool is_dynamic(int64_t column) const { return column >= static_chunks_ * kChunk; }
  int64_t dynamic_index(int64_t column) const { return column - static_chunks_ * kChunk; }

  float threshold() const { return threshold_; }
  int64_t draft_size() const { return columns_.draft_size; }
  int64_t dynamic_size() const { return columns_.dynamic_size; }
  int32_t dynamic_token(int64_t index) const { return dynamic_tokens_[index]; }
  bool dynamic_used(int64_t index) const {
    return dynamic_tokens_[index] >= 0 && dynamic_tokens_[index] < columns_.target_size;
  }

  float static_value(int64_t column) const {
    const float shift = columns_.bias == nullptr ? 0.0f : columns_.bias[column];
    return kept(logits_[column] / temperature_ + shift);
  }
  float dynamic_value(int64_t index) const { return kept(dynamic_logits_[index] / temperature_); }

 private:
  float kept(float z) const { return z < threshold_ ? -kInfinity : z; }

  float scale_static(int64_t begin, int64_t count, float* z) const {
    const float* bias = columns_.bias == nullptr ? nullptr : columns_.bias + begin;
    return arithmetic().scale(
        {logits_.dtype(), logits_.at(begin), count, temperature_, bias, greedy_}, z);
  }

  // The logits of unused columns are not read.
  float scale_dynamic(int64_t begin, int64_t count, float* z) const {
    for (int64_t i = 0; i < count; ++i) {
      z[i] = dynamic_used(begin + i) ? dynamic_logits_[begin + i] : -kInfinity;
    }
    return arithmetic().scale({Dtype::kFloat32, z, count, temperature_, nullptr, false}, z);
  }

  const DraftColumns& columns_;
  LogitsRow logits_;
  LogitsRow dynamic_logits_;
  const int32_t* dynamic_tokens_;
  bool greedy_;
  float temperature_;
  int64_t static_chunks_;
  float threshold_ = -kInfinity;
};

// Cuts the row where its limits say. False if it has no distribution.
inline bool truncate(const RowLimits& limits, const Threads& threads, DraftRow* row) {
  if (!limits.any()) return true;
  Threshold& threshold = threshold_of_thread();
  if (!threshold.find(*row, limits, threads)) return false;
  row->cut(threshold.value());
  return true;
}

// The stats of a drafted row that verification needs: (max, sum, s_r...), s_r = sum_i q'_i U[i, r].
// Fills softmax too, for drawing. Returns false, with NaN stats, if the row has no distribution.
inline bool draft_stats(const DraftRow& row, const float* spread, int64_t rank,
                        const Threads& threads, Softmax* softmax, float* stats) {
  std::vector<float> spread_sums(row.static_chunks() * rank);
  summarize(row, threads, softmax, [&](int64_t chunk, const float* exponentials) {
    if (rank == 0 || chunk >= row.static_chunks()) return;
    arithmetic().spread_sums(exponentials, row.count(chunk), spread + chunk * kChunk * rank, rank,
                             spread_sums.data() + chunk * rank);
  });
  if (!softmax->valid) {
    std::fill(stats, stats + 2 + rank, std::numeric_limits<float>::quiet_NaN());
    return false;
  }
  stats[0] = softmax->max;
  stats[1] = softmax->sum;
  for (int64_t r = 0; r < rank; ++r) {
    double mass = 0.0;
    for (int64_t chunk = 0; chunk < row.static_chunks(); ++chunk) {
      mass += spread_sums[chunk * rank + r] * softmax->scales[chunk];
    }
    stats[2 + r] = static_cast<float>(mass / softmax->sum);
  }
  return true;
}

}  // namespace rdk::cpu
