#include "truncation.h"

#include <limits>
#include <utility>

namespace rdk::cpu {
namespace {

// exp(-28) < 2^-40, so columns further below the largest have no mass.
constexpr float kMassless = 28.0f;

constexpr float kLeastFinite = std::numeric_limits<float>::lowest();

int64_t mass_of(float weight) { return static_cast<int64_t>(std::ldexp(double{weight}, 40)); }

float above(float value) { return std::nextafterf(value, kInfinity); }

// Floats as integers in the same order, to halve a range by how many there are in it.
int32_t ordered(float value) {
  int32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits < 0 ? std::numeric_limits<int32_t>::min() - bits : bits;
}

float of_ordered(int32_t key) {
  const int32_t bits = key < 0 ? std::numeric_limits<int32_t>::min() - key : key;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

float halfway(float low, float high) {
  const int64_t sum = int64_t{ordered(low)} + ordered(high);
  return of_ordered(static_cast<int32_t>(sum >> 1));
}

// Where a straight line between the two ends of a range reaches `amount`; strictly inside of it.
float on_the_line(float low, float high, int64_t at_low, int64_t at_high, int64_t amount) {
  const double share =
      static_cast<double>(amount - at_high) / static_cast<double>(at_low - at_high);
  const double point = high - share * (static_cast<double>(high) - low);
  return std::clamp(static_cast<float>(point), above(low), std::nextafterf(high, -kInfinity));
}

}  // namespace

float Threshold::of_limits(const RowLimits& limits, const Threads& threads) {
  float least = -kInfinity;
  if (limits.min_p > 0.0f) {
    least = largest_ + static_cast<float>(std::log(static_cast<double>(limits.min_p)));
  }
  if (limits.top_k > 0) least = boundary({limits.top_k, false}, least);
  if (limits.top_p < 1.0f) {
    const float positive = std::fmax(least, std::fmax(largest_ - kMassless, kLeastFinite));
    const int64_t mass = nucleus_mass(limits.top_p, positive, threads);
    least = std::fmax(least, boundary({mass, true}, positive));
  }
  return least;
}

// The mass that top-p asks for, of the columns that are at least `least`.
int64_t Threshold::nucleus_mass(float top_p, float least, const Threads& threads) {
  weights_.resize(z_.size());
  std::vector<int64_t> masses(counts_.size());
  for_chunks(threads, [&](int64_t chunk) {
    if (!(maxima_[chunk] >= least)) return;
    const float* z = z_.data() + chunk * kChunk;
    float* weights = weights_.data() + chunk * kChunk;
    std::copy_n(z, (counts_[chunk] + 15) / 16 * 16, weights);
    arithmetic().exponentiate(weights, counts_[chunk], largest_);
    masses[chunk] = arithmetic().measure(z, weights, counts_[chunk], least).mass;
  });
  int64_t total = 0;
  for (const int64_t mass : masses) total += mass;
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(wanted)));
}

// Of all columns that are at least `threshold`, which is finite.
Measure Threshold::from(float threshold, bool of_mass) const {
  Measure sum;
  for (size_t chunk = 0; chunk < maxima_.size(); ++chunk) {
    if (!(maxima_[chunk] >= threshold)) continue;
    const Measure part = arithmetic().measure(z_.data() + chunk * kChunk,
                                              of_mass ? weights_.data() + chunk * kChunk : nullptr,
                                              counts_[chunk], threshold);
    sum.count += part.count;
    sum.mass += part.mass;
  }
  return sum;
}

// The largest value of which the columns that are at least as large have what is needed; `least` if
// it is larger. The value lies in [low, high), which first grows downwards from the largest column,
// so that most chunks are not looked at, and then shrinks to a few columns.
float Threshold::boundary(const Need& need, float least) const {
  constexpr int64_t kFew = 256;
  const float bottom = std::fmax(least, kLeastFinite);
  float high = above(largest_);
  float low = high;
  Measure at_high;
  Measure at_low;
  for (float step = 2.0f; need.in(at_low) < need.amount; step *= 2.0f) {
    if (low <= bottom) return least;
    high = low;
    at_high = at_low;
    low = std::fmax(bottom, largest_ - step);
    at_low = from(low, need.of_mass);
  }
  for (bool halves = false; above(low) < high; halves = !halves) {
    if (at_low.count - at_high.count <= kFew) {
      return among_few(need, low, high, need.in(at_high));
    }
    const float pivot = halves || high == kInfinity ? halfway(low, high)
                                                    : on_the_line(low, high, need.in(at_low),
                                                                  need.in(at_high), need.amount);
    const Measure at_pivot = from(pivot, need.of_mass);
    const bool enough = need.in(at_pivot) >= need.amount;
    (enough ? low : high) = pivot;
    (enough ? at_low : at_high) = at_pivot;
  }
  return low;
}

// The same by looking at each column in [low, high); those from `high` on have `above_high`.
float Threshold::among_few(const Need& need, float low, float high, int64_t above_high) const {
  std::vector<std::pair<float, int64_t>> columns;  // z, and what it adds
  for (size_t chunk = 0; chunk < maxima_.size(); ++chunk) {
    if (!(maxima_[chunk] >= low)) continue;
    const int64_t end = chunk * kChunk + counts_[chunk];
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      if (low <= z_[i] && z_[i] < high) {
        columns.emplace_back(z_[i], need.of_mass ? mass_of(weights_[i]) : 1);
      }
    }
  }
  std::sort(columns.begin(), columns.end(), [](auto a, auto b) { return a.first > b.first; });
  int64_t reached = above_high;
  for (const auto& [z, amount] : columns) {
    reached += amount;
    if (reached >= need.amount) return z;
  }
  return low;
}

}  // namespace rdk::cpu
