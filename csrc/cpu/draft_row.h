// One row of the drafter's softmax: V_d static columns with their bias, then, in chunks of their
// own, the row's dynamic columns (DESIGN.md, "Dynamic tokens").
#pragma once

#include <algorithm>
#include <cstdint>

#include "logits.h"
#include "softmax.h"

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
        static_chunks_((columns.draft_size + kChunk - 1) / kChunk) {}

  int64_t chunks() const { return static_chunks_ + (columns_.dynamic_size + kChunk - 1) / kChunk; }

  bool scale_chunk(int64_t chunk, float* z) const {
    return chunk < static_chunks_ ? scale_static(chunk * kChunk, z)
                                  : scale_dynamic((chunk - static_chunks_) * kChunk, z);
  }

  // Columns are numbered as the chunks are: dynamic ones begin at a multiple of 1024.
  bool is_dynamic(int64_t column) const { return column >= static_chunks_ * kChunk; }
  int64_t dynamic_index(int64_t column) const { return column - static_chunks_ * kChunk; }

  int64_t dynamic_size() const { return columns_.dynamic_size; }
  int32_t dynamic_token(int64_t index) const { return dynamic_tokens_[index]; }
  bool dynamic_used(int64_t index) const {
    return dynamic_tokens_[index] >= 0 && dynamic_tokens_[index] < columns_.target_size;
  }

  float static_value(int64_t column) const {
    float z;
    scale(logits_[column], temperature_, bias(column), &z);
    return z;
  }
  float dynamic_value(int64_t index) const {
    float z;
    scale(dynamic_logits_[index], temperature_, 0.0f, &z);
    return z;
  }

 private:
  float bias(int64_t column) const {
    const float bias = columns_.bias[column];
    return greedy_ && bias != -kInfinity ? 0.0f : bias;
  }

  bool scale_static(int64_t begin, float* z) const {
    const int64_t count = std::min<int64_t>(kChunk, columns_.draft_size - begin);
    logits_.load(begin, count, z);
    bool usable = true;
    for (int64_t i = 0; i < count; ++i) {
      usable &= scale(z[i], temperature_, bias(begin + i), &z[i]);
    }
    std::fill(z + count, z + kChunk, -kInfinity);
    return usable;
  }

  bool scale_dynamic(int64_t begin, float* z) const {
    const int64_t count = std::min<int64_t>(kChunk, columns_.dynamic_size - begin);
    bool usable = true;
    std::fill(z, z + kChunk, -kInfinity);
    for (int64_t i = 0; i < count; ++i) {
      if (dynamic_used(begin + i)) {
        usable &= scale(dynamic_logits_[begin + i], temperature_, 0.0f, &z[i]);
      }
    }
    return usable;
  }

  const DraftColumns& columns_;
  LogitsRow logits_;
  LogitsRow dynamic_logits_;
  const int32_t* dynamic_tokens_;
  bool greedy_;
  float temperature_;
  int64_t static_chunks_;
};

// What verification keeps of a drafted row: stats = (max, sum, s_r...), s_r = sum_i q'_i U[i, r].
// softmax is left for drawing. False, and NaN stats, where the row has no distribution.
inline bool draft_stats(const DraftRow& row, int64_t draft_size, const float* spread, int64_t rank,
                        Softmax* softmax, float* stats) {
  std::vector<float> spread_sums(row.chunks() * rank);
  summarize(row, softmax, [&](int64_t chunk, const float* exponentials) {
    if (rank == 0 || row.is_dynamic(chunk * kChunk)) return;
    const int64_t begin = chunk * kChunk;
    const int64_t count = std::min<int64_t>(kChunk, draft_size - begin);
    for (int64_t r = 0; r < rank; ++r) {
      spread_sums[chunk * rank + r] = sum_chunk([&](int64_t i) {
        return i < count ? exponentials[i] * spread[(begin + i) * rank + r] : 0.0f;
      });
    }
  });
  if (!softmax->valid) {
    std::fill(stats, stats + 2 + rank, std::numeric_limits<float>::quiet_NaN());
    return false;
  }
  stats[0] = softmax->max;
  stats[1] = softmax->sum;
  for (int64_t r = 0; r < rank; ++r) {
    double mass = 0.0;
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
      mass += spread_sums[chunk * rank + r] * softmax->chunk_scale(chunk);
    }
    stats[2 + r] = static_cast<float>(mass / softmax->sum);
  }
  return true;
}

}  // namespace rdk::cpu
