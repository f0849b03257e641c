// The chunked softmax that every operator shares, so that a row has the same sums, to the bit,
// wherever it is read. Chunks of 1024 columns are summed relative to their own maximum over fixed
// lanes and a fixed tree, then merged in order against the row's maximum (DESIGN, "To the bit").
//
// A Row here is anything with
//   int64_t chunks() const;
//   int64_t count(int64_t chunk) const;                columns in it, kChunk but in the last
//   float scale(int64_t chunk, float* z) const;        as Arithmetic::scale
//   ChunkSum exponentiate(int64_t chunk, float* weights) const;   exp(z - max of the chunk)
//   bool empty(int64_t chunk) const;                   known to have no z above -inf
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "../common/validity.h"
#include "arithmetic.h"
#include "threads.h"

namespace rdk::cpu {

// A chunk without a finite value has zeros only.
inline float chunk_shift(float max) { return max == -kInfinity ? 0.0f : max; }

struct ChunkSum {
  float max;  // NaN: the row has no distribution
  float sum;  // of exp(z - max)
};

// Writes exp(z - max) of what a chunk keeps, max the largest z in it.
inline ChunkSum exponentiate_kept(const float* z, int64_t count, float max, float threshold,
                                  float* weights) {
  if (max < threshold) max = -kInfinity;
  return {max, arithmetic().exponentiate_kept(z, count, threshold, chunk_shift(max), weights)};
}

// The first index whose running sum exceeds u * total, never one of weight zero; -1 if the total is
// zero. Sixteen weights at a time are added in order, and then these sums. That keeps the chains of
// additions short, and the same partial sums find the index within its sixteen.
template <typename Weight>
int64_t draw_index(int64_t count, float u, const Weight& weight) {
  constexpr int64_t kBlock = 16;
  const auto block_sum = [&](int64_t begin) {
    const int64_t end = std::min(begin + kBlock, count);
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) sum += weight(i);
    return sum;
  };
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kBlock) total += block_sum(begin);
  const double target = u * total;
  double before = 0.0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const double sum = block_sum(begin);
    if (before + sum > target) {
      double running = weight(begin);
      while (before + running <= target) running += weight(++begin);
      return begin;
    }
    before += sum;
  }
  return -1;
}

struct Softmax {
  std::vector<ChunkSum> chunks;
  std::vector<double> scales;  // exp(the chunk's max - max)
  float max = 0.0f;
  float sum = 0.0f;  // of exp(z - max)
  bool valid = false;

  double chunk_weight(int64_t chunk) const { return chunks[chunk].sum * scales[chunk]; }
  int64_t draw_chunk(float u) const {
    return draw_index(chunks.size(), u, [&](int64_t chunk) { return chunk_weight(chunk); });
  }

  void merge() {
    valid = false;
    max = -kInfinity;
    for (const ChunkSum& chunk : chunks) {
      if (std::isnan(chunk.max)) return;
      max = std::fmax(max, chunk.max);
    }
    if (max == -kInfinity) return;
    valid = true;
    scales.resize(chunks.size());
    double total = 0.0;
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      scales[chunk] = std::exp(static_cast<double>(chunks[chunk].max) - static_cast<double>(max));
      total += chunk_weight(chunk);
    }
    sum = static_cast<float>(total);
  }
};

// work(chunk) for all chunks of a row, several in a unit.
template <typename Work>
void share_chunks(const Threads& threads, int64_t chunks, const Work& work) {
  constexpr int64_t kTogether = 8;
  share(threads, chunks, work, kTogether);
}

// One pass over a row. on_chunk(chunk, exponentials) is called for each chunk that is not known to
// be empty, while it is in cache.
template <typename Row, typename OnChunk>
void summarize(const Row& row, const Threads& threads, Softmax* softmax, const OnChunk& on_chunk) {
  softmax->chunks.resize(row.chunks());
  share_chunks(threads, row.chunks(), [&](int64_t chunk) {
    alignas(64) float weights[kChunk];
    if (row.empty(chunk)) {
      softmax->chunks[chunk] = {-kInfinity, 0.0f};
      return;
    }
    softmax->chunks[chunk] = row.exponentiate(chunk, weights);
    on_chunk(chunk, weights);
  });
  softmax->merge();
}

template <typename Row>
void summarize(const Row& row, const Threads& threads, Softmax* softmax) {
  summarize(row, threads, softmax, [](int64_t, const float*) {});
}

// The index of a column within its chunk.
template <typename Row>
int64_t draw_in_chunk(const Row& row, int64_t chunk, float u) {
  alignas(64) float weights[kChunk];
  row.exponentiate(chunk, weights);
  return draw_index(row.count(chunk), u, [&](int64_t i) { return weights[i]; });
}

// Two-level: one uniform picks the chunk, one the column inside it.
template <typename Row>
int64_t draw_column(const Row& row, const Softmax& softmax, float u_chunk, float u_column) {
  const int64_t chunk = softmax.draw_chunk(u_chunk);
  return chunk * kChunk + draw_in_chunk(row, chunk, u_column);
}

// The first column of the largest finite value; -1 where the row has no distribution.
template <typename Row>
int64_t argmax_column(const Row& row) {
  alignas(64) float z[kChunk];
  float best = -kInfinity;
  int64_t column = -1;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    const float max = row.scale(chunk, z);
    if (std::isnan(max)) return -1;
    if (max > best) {
      best = max;
      column = chunk * kChunk + (std::find(z, z + kChunk, max) - z);
    }
  }
  return column;
}

}  // namespace rdk::cpu
