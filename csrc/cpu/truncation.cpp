#include "truncation.h"

#include <limits>
#include <utility>

namespace rdk::cpu {
namespace {

// exp(-28) < 2^-40, so columns further below the largest have no mass.
constexpr float kMassless = 28.0f;

constexpr float kLeastFinite = std::numeric_limits<float>::lowest();

// The arithmetic reads and writes 16 columns at a time.
constexpr int64_t kLanesOfArithmetic = 16;

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

// Where a straight line between the two ends of a range reaches `amount`.
float on_the_line(float low, float high, int64_t at_low, int64_t at_high, int64_t amount) {
  const double share =
      static_cast<double>(amount - at_high) / static_cast<double>(at_low - at_high);
  return static_cast<float>(high - share * (static_cast<double>(high) - low));
}

}  // namespace

float Threshold::of_limits(const RowLimits& limits, const Threads& threads) {
  float least = -kInfinity;
  if (limits.min_p > 0.0f) {
    least = largest_ + static_cast<float>(std::log(static_cast<double>(limits.min_p)));
  }
  int64_t columns = 0;
  for (const int64_t count : counts_) columns += count;
  if (limits.top_k > 0 && limits.top_k < columns) least = boundary({limits.top_k, false}, least);
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
// it is larger. It lies in [low, high), which first grows downwards from the largest column, so
// that most chunks are not looked at.
float Threshold::boundary(const Need& need, float least) {
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
  Range range = collect(low, high, at_low.count - at_high.count, need.of_mass);
  return among(need, range, need.in(at_high), need.in(at_low));
}

// The columns in [low, high), of which there are `count`.
Range Threshold::collect(float low, float high, int64_t count, bool of_mass) {
  few_z_.resize(count + 2 * kLanesOfArithmetic);
  if (of_mass) few_weights_.resize(few_z_.size());
  Range all{0, kInfinity, -kInfinity};
  for (size_t chunk = 0; chunk < maxima_.size(); ++chunk) {
    if (!(maxima_[chunk] >= low)) continue;
    const float* z = z_.data() + chunk * kChunk;
    const Range part = arithmetic().collect(z, of_mass ? weights_.data() + chunk * kChunk : nullptr,
                                            counts_[chunk], low, high, few_z_.data() + all.count,
                                            few_weights_.data() + all.count);
    all.count += part.count;
    all.least = std::fmin(all.least, part.least);
    all.largest = std::fmax(all.largest, part.largest);
  }
  return all;
}

// The same among the collected columns, which become fewer: those from the largest on have less
// than is needed, `before` of it without them, and all of them enough, `with_all`.
float Threshold::among(const Need& need, Range range, int64_t before, int64_t with_all) {
  constexpr int64_t kFew = 64;
  for (int turn = 0; range.least < range.largest; ++turn) {
    if (range.count <= kFew) return among_few(need, range.count, before);
    const float end = above(range.largest);
    float pivot = halfway(range.least, end);
    if (turn % 3 == 0) {
      pivot = on_the_line(range.least, end, with_all, before, need.amount);
    } else if (turn % 3 == 1) {
      pivot = range.least + (range.largest - range.least) * 0.5f;
    }
    // From the second value on, so that both parts have a column.
    pivot = std::fmin(std::fmax(pivot, above(range.least)), range.largest);
    const Measure at_pivot = of_few(range.count, pivot, need.of_mass);
    const bool enough = before + need.in(at_pivot) >= need.amount;
    if (enough) {
      with_all = before + need.in(at_pivot);
    } else {
      before += need.in(at_pivot);
    }
    float* weights = need.of_mass ? few_weights_.data() : nullptr;
    range = arithmetic().collect(few_z_.data(), weights, range.count, enough ? pivot : range.least,
                                 enough ? end : pivot, few_z_.data(), weights);
  }
  return range.least;
}

// Columns behind the last one are not there.
void Threshold::pad(int64_t count, bool of_mass) {
  std::fill_n(few_z_.data() + count, kLanesOfArithmetic, -kInfinity);
  if (of_mass) std::fill_n(few_weights_.data() + count, kLanesOfArithmetic, 0.0f);
}

Measure Threshold::of_few(int64_t count, float threshold, bool of_mass) {
  pad(count, of_mass);
  Measure sum;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const Measure part =
        arithmetic().measure(few_z_.data() + begin, of_mass ? few_weights_.data() + begin : nullptr,
                             std::min<int64_t>(kChunk, count - begin), threshold);
    sum.count += part.count;
    sum.mass += part.mass;
  }
  return sum;
}

// The same by looking at each of them.
float Threshold::among_few(const Need& need, int64_t count, int64_t before) const {
  std::vector<std::pair<float, int64_t>> columns(count);  // z, and what it adds
  for (int64_t i = 0; i < count; ++i) {
    columns[i] = {few_z_[i], need.of_mass ? mass_of(few_weights_[i]) : 1};
  }
  std::sort(columns.begin(), columns.end(), [](auto a, auto b) { return a.first > b.first; });
  for (const auto& [z, amount] : columns) {
    before += amount;
    if (before >= need.amount) return z;
  }
  return columns.back().first;
}

Threshold& threshold_of_thread() {
  thread_local Threshold threshold;
  return threshold;
}

}  // namespace rdk::cpu
