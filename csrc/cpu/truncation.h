// Which columns a row keeps under top-k, top-p and min-p: those whose z is at least a threshold
// (docs/design.md, "Truncation"). Counts and masses are integers, so it is the same whatever the
// order in which they are added.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "softmax.h"

namespace rdk::cpu {

struct RowLimits {
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;

  RowLimits() = default;
  RowLimits(const Truncation& given, int64_t row) {
    if (given.top_k != nullptr) top_k = given.top_k[row];
    if (given.top_p != nullptr) top_p = given.top_p[row];
    if (given.min_p != nullptr) min_p = given.min_p[row];
  }

  bool any() const { return top_k != 0 || top_p != 1.0f || min_p != 0.0f; }
  // False for NaN.
  bool usable() const {
    return top_k >= 0 && top_p > 0.0f && top_p <= 1.0f && min_p >= 0.0f && min_p <= 1.0f;
  }
};

// The values of one row, and where they are cut. Memory is kept from one row to the next.
class Threshold {
 public:
  // Reads the row, whose scale() does not cut it yet. False if it has no distribution.
  template <typename Row>
  bool find(const Row& row, const RowLimits& limits, const Threads& threads) {
    if (!limits.usable()) return false;
    counts_.resize(row.chunks());
    maxima_.resize(row.chunks());
    z_.resize(row.chunks() * kChunk);
    has_weights_ = false;
    for_chunks(threads, [&](int64_t chunk) {
      counts_[chunk] = row.count(chunk);
      maxima_[chunk] = row.scale(chunk, z_.data() + chunk * kChunk);
    });
    largest_ = -kInfinity;
    for (const float max : maxima_) {
      if (std::isnan(max)) return false;
      largest_ = std::fmax(largest_, max);
    }
    if (largest_ == -kInfinity) return false;
    value_ = of_limits(limits, threads);
    return true;
  }

  float value() const { return value_; }
  // The largest z of each chunk, before the cut.
  const float* maxima() const { return maxima_.data(); }
  // A chunk after the cut, padded as Arithmetic::scale does. Returns the largest z.
  float read(int64_t chunk, float* z) const {
    arithmetic().cut(z_.data() + chunk * kChunk, counts_[chunk], value_, z);
    return maxima_[chunk] < value_ ? -kInfinity : maxima_[chunk];
  }
  ChunkSum exponentiate(int64_t chunk, float* weights) const {
    const int64_t begin = chunk * kChunk;
    const float max = maxima_[chunk];
    if (has_weights_ && max >= value_) {
      return {max, arithmetic().keep(z_.data() + begin, weights_.data() + begin, counts_[chunk],
                                     value_, weights)};
    }
    return exponentiate_kept(z_.data() + begin, counts_[chunk], max, value_, weights);
  }

 private:
  // How much the columns from the boundary on have to have: columns, or a share of all masses.
  struct Need {
    int64_t amount;  // of masses known only when all have been added
    float share;     // 0: columns are counted

    bool of_mass() const { return share > 0.0f; }
    int64_t in(const Measure& measure) const { return of_mass() ? measure.mass : measure.count; }
  };

  // The largest value from which on there is enough, and how much larger ones have.
  struct Boundary {
    float value;
    int64_t above;
  };

  // What a mass is at least, and at most.
  struct Bounds {
    int64_t least;
    int64_t most;
  };

  struct Outside {
    Bounds above;
    Bounds below;
    int64_t inside;  // how many columns are in the band
  };

  template <typename Work>
  void for_chunks(const Threads& threads, const Work& work) const {
    constexpr int64_t kChunksPerUnit = 8;
    const int64_t chunks = static_cast<int64_t>(counts_.size());
    share(threads, (chunks + kChunksPerUnit - 1) / kChunksPerUnit, [&](Units& units) {
      for (int64_t unit; units.claim(&unit);) {
        const int64_t end = std::min((unit + 1) * kChunksPerUnit, chunks);
        for (int64_t chunk = unit * kChunksPerUnit; chunk < end; ++chunk) work(chunk);
      }
    });
  }

  float of_limits(const RowLimits& limits, const Threads& threads);
  float boundary(Need need, float least, const Threads& threads);
  Split guess(const Need& need, float least) const;
  int64_t sample(float* z) const;
  std::optional<float> by_bounds(const Split& band, float share, const Threads& threads);
  Outside weigh(const Split& band, const Threads& threads);
  Bounds bounds_of(double sum, double error) const;
  SplitColumns split(const Split& split, const Threads& threads);
  int64_t close_up(int64_t chunk, int64_t inside, int64_t before);
  Range keep_few(int64_t count, float low, float high, bool of_mass);
  Boundary among(const Need& need, Range range, int64_t before, int64_t with_all);
  Boundary among_few(const Need& need, int64_t count, int64_t before) const;
  Measure few(int64_t count, float low, bool of_mass);
  Measure of_few(int64_t count, float threshold, bool of_mass);
  void pad(int64_t count, bool of_mass);

  std::vector<int64_t> counts_;
  std::vector<float> maxima_;
  std::vector<SplitColumns> parts_;
  std::vector<WeighedColumns> weighed_parts_;
  int64_t columns_ = 0;
  std::vector<float> z_;
  std::vector<float> weights_;      // exp(z - max of the chunk) of chunks that have a mass
  bool has_weights_ = false;        // of this row
  std::vector<float> few_z_;        // columns that are left to be looked at
  std::vector<float> few_weights_;  // exp(z - largest) of them; only for top-p
  float largest_ = 0.0f;
  float value_ = 0.0f;
};

// Kept from one call to the next: its memory, at most 20 bytes for each column, would be cleared
// anew by the system for every call.
Threshold& threshold_of_thread();

}  // namespace rdk::cpu
