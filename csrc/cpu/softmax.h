// The chunked softmax that every operator shares, so that a row has the same sums, to the bit,
// wherever it is read. Chunks of 1024 columns are summed relative to their own maximum over fixed
// lanes and a fixed tree, then merged in order against the row's maximum (DESIGN.md, "To the bit").
//
// A Row here is anything with
//   int64_t chunks() const;
//   bool scale_chunk(int64_t chunk, float* z) const;   kChunk values, padded with -inf; false: a
//   value
//                                                      in it leaves the row without a distribution
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../params.h"

namespace rdk::cpu {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline bool usable_temperature(float temperature) {
  return temperature >= 0.0f && temperature < kInfinity;  // false for NaN
}

// z = logit / temperature + bias; false where that leaves the row without a distribution: a logit
// that is NaN or +inf, a quotient that overflows. Logits of -inf are ordinary zeros.
inline bool scale(float logit, float temperature, float bias, float* z) {
  const float quotient = logit / temperature;
  *z = quotient + bias;
  const bool overflows = quotient == -kInfinity && logit != -kInfinity;
  return *z < kInfinity && quotient < kInfinity && !overflows;
}

template <typename Value>
float sum_chunk(Value&& value) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

struct ChunkSum {
  float max;
  float sum;  // of exp(z - max)
};

// Replaces the scaled logits of a chunk by exp(z - max).
inline ChunkSum exponentiate_chunk(float* z) {
  float max = -kInfinity;
  for (int64_t i = 0; i < kChunk; ++i) max = z[i] > max ? z[i] : max;
  const float shift = max == -kInfinity ? 0.0f : max;
  for (int64_t i = 0; i < kChunk; ++i) z[i] = std::exp(z[i] - shift);
  return {max, sum_chunk([z](int64_t i) { return z[i]; })};
}

// First index whose running sum exceeds u * total; never one of weight zero. -1 if the total is
// zero.
template <typename Weight>
int64_t draw_index(int64_t count, float u, Weight&& weight) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weight(i);
  double running = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    running += weight(i);
    if (running > u * total) return i;
  }
  return -1;
}

struct Softmax {
  std::vector<ChunkSum> chunks;
  float max = 0.0f;
  float sum = 0.0f;  // of exp(z - max)
  bool valid = false;

  double chunk_scale(int64_t chunk) const {
    return chunks[chunk].max == -kInfinity
               ? 0.0
               : std::exp(static_cast<double>(chunks[chunk].max) - static_cast<double>(max));
  }
  double chunk_weight(int64_t chunk) const { return chunks[chunk].sum * chunk_scale(chunk); }
};

// One pass over a row. on_chunk(chunk, exponentials) sees each chunk while it is at hand.
template <typename Row, typename OnChunk>
void summarize(const Row& row, Softmax* softmax, OnChunk&& on_chunk) {
  alignas(64) float z[kChunk];
  softmax->chunks.resize(row.chunks());
  softmax->max = -kInfinity;
  softmax->valid = false;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    if (!row.scale_chunk(chunk, z)) return;
    softmax->chunks[chunk] = exponentiate_chunk(z);
    softmax->max = std::fmax(softmax->max, softmax->chunks[chunk].max);
    on_chunk(chunk, z);
  }
  double total = 0.0;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) total += softmax->chunk_weight(chunk);
  softmax->sum = static_cast<float>(total);
  softmax->valid = softmax->max > -kInfinity;
}

template <typename Row>
void summarize(const Row& row, Softmax* softmax) {
  summarize(row, softmax, [](int64_t, const float*) {});
}

// Two-level: one uniform picks the chunk, one the column inside it.
template <typename Row>
int64_t draw_column(const Row& row, const Softmax& softmax, float u_chunk, float u_column) {
  const int64_t chunk =
      draw_index(row.chunks(), u_chunk, [&](int64_t c) { return softmax.chunk_weight(c); });
  alignas(64) float z[kChunk];
  row.scale_chunk(chunk, z);
  exponentiate_chunk(z);
  return chunk * kChunk + draw_index(kChunk, u_column, [&z](int64_t i) { return z[i]; });
}

// The first column of the largest finite value; -1 where the row has no distribution.
template <typename Row>
int64_t argmax_column(const Row& row) {
  alignas(64) float z[kChunk];
  float best = -kInfinity;
  int64_t column = -1;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    if (!row.scale_chunk(chunk, z)) return -1;
    for (int64_t i = 0; i < kChunk; ++i) {
      if (z[i] > best) {
        best = z[i];
        column = chunk * kChunk + i;
      }
    }
  }
  return column;
}

}  // namespace rdk::cpu
