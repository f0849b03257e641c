// Which columns a row keeps under top-k, top-p and min-p: those whose z is at least a threshold
// (docs/design.md, "Truncation"). Counts and masses are integers, so it is the same whatever the
// order in which they are added.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
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

// Where one row is cut. Memory is kept from one row to the next.
//
// A pass that only reads a row from memory waits for it, and one that stores every z pushes the row
// out of the L2 cache. So a sample, of 64 cache lines, says first what the first pass should look
// for, and z are computed anew in each pass.
class Threshold {
 public:
  // Reads the row, by what its scale_some() gives. False if it has no distribution.
  template <typename Row>
  bool find(const Row& row, const RowLimits& limits, const Threads& threads) {
    counts_.resize(row.chunks());
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) counts_[chunk] = row.count(chunk);
    scale_ = [&row](int64_t chunk, int64_t first, int64_t count, float* z) {
      return row.scale_some(chunk, first, count, z);
    };
    return find(limits, threads);
  }

  float value() const { return value_; }
  // The largest z of each chunk, before the cut.
  const float* maxima() const { return maxima_.data(); }
  // Replaces the z of a chunk, with their padding, by exp(z - max) of what is kept.
  ChunkSum exponentiate(int64_t chunk, float* z) const {
    const int64_t count = counts_[chunk];
    const float max = maxima_[chunk];
    if (has_weights_ && max >= value_) {
      return {max, arithmetic().keep(z, weights_.data() + chunk * kChunk, count, value_, z)};
    }
    return exponentiate_kept(z, count, max, value_, z);
  }

 private:
  // How much the columns from the boundary on have to have: columns, or a share of all masses.
  struct Need {
    int64_t amount;  // of masses known only when all have been added
    float share;     // 0: columns are counted

    bool of_mass() const { return share > 0.0f; }
    int64_t in(const Measure& measure) const { return of_mass() ? measure.mass : measure.count; }
  };

  // Where a boundary is looked for: from low on, below high.
  struct Band {
    float low;
    float high;
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

  int64_t chunks() const { return static_cast<int64_t>(counts_.size()); }
  bool has_distribution() const { return largest_ > -kInfinity; }  // not where it is NaN
  template <typename Work>
  void read(float least, const Threads& threads, const Work& work);
  bool find(const RowLimits& limits, const Threads& threads);
  float of_limits(const RowLimits& limits, const Threads& threads);
  float boundary(Need need, float least, const Threads& threads);
  Band guess(const Need& need, float least) const;
  int64_t sample(float* z, float* largest) const;
  std::optional<float> by_bounds(const Band& band, float share, const Threads& threads);
  Outside weigh(const Band& band, const Threads& threads);
  Bounds bounds_of(double sum, double error) const;
  SplitColumns split(const Band& band, bool of_mass, float least, const Threads& threads);
  int64_t close_up(int64_t chunk, int64_t inside, int64_t before);
  Range keep_few(int64_t count, float low, float high, bool of_mass);
  Boundary among(const Need& need, Range range, int64_t before, int64_t with_all);
  Boundary among_few(const Need& need, int64_t count, int64_t before) const;
  Measure few(int64_t count, float low, bool of_mass);
  Measure of_few(int64_t count, float threshold, bool of_mass);
  void pad(int64_t count, bool of_mass);

  // Of the row, while it is looked at.
  std::function<float(int64_t chunk, int64_t first, int64_t count, float* z)> scale_;
  std::vector<int64_t> counts_;
  std::vector<float> maxima_;
  std::vector<SplitColumns> parts_;
  std::vector<WeighedColumns> weighed_parts_;
  int64_t columns_ = 0;
  std::vector<float> weights_;      // exp(z - max of the chunk)
  bool has_weights_ = false;        // of this row
  std::vector<float> few_z_;        // columns that are left to be looked at
  std::vector<float> few_weights_;  // exp(z - largest) of them; only for top-p
  bool is_read_ = false;            // then these are known: maxima_ and
  float largest_ = 0.0f;            // NaN: the row has no distribution
  float value_ = 0.0f;
};

// Kept from one call to the next: its memory, at most 12 bytes for each column, would be cleared
// anew by the system for every call.
Threshold& threshold_of_thread();

}  // namespace rdk::cpu
