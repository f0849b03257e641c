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

// A sample is of pieces from all over the row, which begin where a word of a mask does.
constexpr int64_t kPiece = 16;
constexpr int64_t kPieces = kChunk / kPiece;
int64_t column_of(int64_t piece) { return piece * 37 % 32 * 32; }

// Below this many columns a sample does not pay.
constexpr int64_t kFewToSample = 4 * kChunk;
constexpr double kManyInSample = 64.0;

int64_t mass_of(float weight) { return static_cast<int64_t>(std::ldexp(double{weight}, 40)); }

// NaN if one of them is.
float larger(float a, float b) { return a >= b || std::isnan(a) ? a : b; }

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

// The largest value from `low` to `high` from which on there is `least` of something, and if
// possible no more than `most`; `low` has that much. Halves both the difference and the number of
// floats in between.
template <typename Amount>
float last_with(float low, float high, int64_t least, int64_t most, const Amount& amount_from) {
  for (int turn = 0; above(low) < high; ++turn) {
    float middle = turn % 2 == 0 ? low + (high - low) * 0.5f : halfway(low, high);
    middle = std::fmin(std::fmax(middle, above(low)), high);
    const int64_t amount = amount_from(middle);
    if (amount < least) {
      high = middle;
    } else if (low = middle; amount <= most) {
      break;
    }
  }
  return low;
}

// Two sums of masses, each rounded to float64 and multiplied, are at most this far off.
constexpr int64_t kRounding = int64_t{1} << 11;

int64_t share_of(int64_t mass, float share) {
  const double wanted = static_cast<double>(share) * static_cast<double>(mass);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(wanted)));
}

}  // namespace

// work(chunk, z) for the chunks with a z of at least `least`; the first time for all that have a z,
// because their maxima are not known before.
template <typename Work>
void Threshold::read(float least, const Threads& threads, const Work& work) {
  share_chunks(threads, chunks(), [&](int64_t chunk) {
    if (is_read_ && maxima_[chunk] < least) return;
    alignas(64) float z[kChunk];
    maxima_[chunk] = scale_(chunk, 0, counts_[chunk], z);
    if (maxima_[chunk] > -kInfinity) work(chunk, z);
  });
  if (is_read_) return;
  is_read_ = true;
  largest_ = -kInfinity;
  for (const float max : maxima_) largest_ = larger(largest_, max);
}

bool Threshold::find(const RowLimits& limits, const Threads& threads) {
  if (!limits.usable()) return false;
  maxima_.resize(chunks());
  columns_ = 0;
  for (const int64_t count : counts_) columns_ += count;
  is_read_ = false;
  has_weights_ = false;
  value_ = of_limits(limits, threads);
  return has_distribution();
}

float Threshold::of_limits(const RowLimits& limits, const Threads& threads) {
  const bool by_columns = limits.top_k > 0 && limits.top_k < columns_;
  const bool by_mass = limits.top_p < 1.0f;
  float least = -kInfinity;
  if (limits.min_p > 0.0f || !(by_columns || by_mass)) {
    read(-kInfinity, threads, [](int64_t, const float*) {});
    least = largest_ + static_cast<float>(std::log(static_cast<double>(limits.min_p)));
  }
  if (by_columns) least = boundary({limits.top_k, 0.0f}, least, threads);
  if (by_mass) least = std::fmax(least, boundary({0, limits.top_p}, least, threads));
  return least;
}

// The largest value of which the columns that are at least as large have what is needed; `least` if
// it is larger. It is looked for in a band where a sample has it, and if that was wrong, above or
// further and further below.
float Threshold::boundary(Need need, float least, const Threads& threads) {
  if (is_read_ && !has_distribution()) return least;
  Band band = guess(need, least);
  if (need.of_mass() && (!is_read_ || least <= largest_ - kMassless)) {
    const std::optional<float> found = by_bounds(band, need.share, threads);
    if (found) return *found;
  }
  float bottom = std::fmax(least, kLeastFinite);
  if (need.of_mass()) bottom = std::fmax(bottom, largest_ - kMassless);
  const SplitColumns found = split(band, need.of_mass(), bottom, threads);
  if (!has_distribution()) return least;
  if (need.of_mass()) need.amount = share_of(found.all, need.share);
  int64_t count = found.inside;
  int64_t above_band = found.above;
  if (above_band >= need.amount) {
    band = {band.high, kInfinity};
    above_band = 0;
    count = split(band, false, bottom, threads).inside;
  }
  for (float step = 2.0f;; step *= 2.0f) {
    const int64_t with_band = above_band + need.in(few(count, band.low, need.of_mass()));
    if (with_band >= need.amount) {
      return among(need, keep_few(count, band.low, band.high, need.of_mass()), above_band,
                   with_band)
          .value;
    }
    if (band.low <= bottom) return least;
    above_band = with_band;
    band.high = band.low;
    band.low = std::fmax(bottom, band.low - step);
    count = split(band, false, bottom, threads).inside;
  }
}

// The boundary of a share of all masses without the mass of every column, where bounds on what is
// above and below the band leave no doubt. What is above makes the share larger, and leaves less of
// it to the band.
std::optional<float> Threshold::by_bounds(const Band& band, float share, const Threads& threads) {
  const Outside outside = weigh(band, threads);
  if (!has_distribution()) return -kInfinity;
  const Bounds& above = outside.above;
  const Bounds& below = outside.below;
  const int64_t inside = few(outside.inside, band.low, true).mass;
  const int64_t least = share_of(above.most + inside + below.least, share) - above.most - kRounding;
  const int64_t most = share_of(above.least + inside + below.most, share) - above.least + kRounding;
  if (inside < most) return std::nullopt;
  const Range range = keep_few(outside.inside, band.low, band.high, true);
  const Boundary found = among({most, share}, range, 0, inside);
  if (found.above >= least) return std::nullopt;
  return found.value;
}

// Collects the band, and weighs what is outside: coarsely if nothing is above. Otherwise much of
// the row is kept, so the weights are, too.
Threshold::Outside Threshold::weigh(const Band& band, const Threads& threads) {
  const bool coarse = band.high == kInfinity;
  weighed_parts_.assign(counts_.size(), {});
  few_z_.resize(chunks() * kChunk + kLanesOfArithmetic);
  if (!coarse) weights_.resize(chunks() * kChunk);
  has_weights_ = !coarse;
  read(-kInfinity, threads, [&](int64_t chunk, const float* z) {
    const int64_t begin = chunk * kChunk;
    float* weights = coarse ? nullptr : weights_.data() + begin;
    weighed_parts_[chunk] = arithmetic().weigh(z, counts_[chunk], band.low, band.high,
                                               maxima_[chunk], weights, few_z_.data() + begin);
  });
  if (!has_distribution()) return {};
  double above_sum = 0.0;
  double below_sum = 0.0;
  int64_t inside = 0;
  for (size_t chunk = 0; chunk < weighed_parts_.size(); ++chunk) {
    const WeighedColumns& part = weighed_parts_[chunk];
    const double scale = std::exp(static_cast<double>(maxima_[chunk]) - largest_);
    above_sum += part.above * scale;
    below_sum += part.below * scale;
    inside = close_up(chunk, part.inside, inside);
  }
  const double range = double{largest_} - std::fmin(band.high, largest_);
  return {bounds_of(above_sum, weighing_error(range)),
          bounds_of(below_sum, coarse ? kCoarseError : weighing_error(kMassless)), inside};
}

// A mass is rounded down, so it is less than one unit below the weight. A column further than 28
// below the largest has no mass, and weighs less than a unit.
Threshold::Bounds Threshold::bounds_of(double sum, double error) const {
  const double mass = std::ldexp(sum, 40);
  return {std::max<int64_t>(0, static_cast<int64_t>(mass * (1.0 - error)) - columns_),
          static_cast<int64_t>(std::ceil(mass * (1.0 + error)))};
}

// Where the boundary probably is, by a sample of the row. The band is as wide as three standard
// deviations of what the sample has above it.
Threshold::Band Threshold::guess(const Need& need, float least) const {
  float bottom = std::fmax(least, kLeastFinite);
  if (columns_ <= kFewToSample) return {bottom, kInfinity};
  alignas(64) float z[kChunk];
  alignas(64) float weights[kChunk];
  float largest;
  const int64_t size = sample(z, &largest);
  if (!(largest > bottom)) return {bottom, kInfinity};
  if (need.of_mass()) bottom = std::fmax(bottom, largest - kMassless);
  Band band{bottom, kInfinity};
  const auto count_from = [&](float value) {
    return arithmetic().measure(z, nullptr, size, value).count;
  };
  double rank = static_cast<double>(need.amount) * size / columns_;
  if (need.of_mass()) {
    std::copy_n(z, size, weights);
    arithmetic().exponentiate(weights, size, largest);
    const auto mass_from = [&](float value) {
      return arithmetic().measure(z, weights, size, value).mass;
    };
    const int64_t mass = share_of(mass_from(bottom), need.share);
    rank = count_from(last_with(bottom, largest, mass, mass + mass / 256, mass_from));
  }
  const double margin = 3.0 * std::sqrt(rank * (1.0 - rank / size)) + 3.0;
  const auto ranked = [&](double from, float low) {
    const auto wanted = static_cast<int64_t>(from);
    return last_with(low, largest, wanted, wanted + static_cast<int64_t>(margin / 4), count_from);
  };
  // What a sample of a mass has above it may be a few large ones, of which it says little.
  const bool little = need.of_mass() && rank - margin < kManyInSample;
  const double down_to = rank + (little ? 3.0 : 1.0) * margin;
  if (count_from(bottom) > down_to) band.low = ranked(down_to, bottom);
  if (!little && rank - margin >= 1) band.high = above(ranked(rank - margin, band.low));
  return band;
}

// Returns how many columns; the largest z is NaN if one of them leaves the row no distribution.
int64_t Threshold::sample(float* z, float* largest) const {
  int64_t size = 0;
  *largest = -kInfinity;
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    const int64_t chunk = piece * chunks() / kPieces;
    const int64_t count = std::min(kPiece, counts_[chunk] - column_of(piece));
    if (count <= 0) continue;
    *largest = larger(*largest, scale_(chunk, column_of(piece), count, z + size));
    size += kPiece;
  }
  return size;
}

// Splits all chunks, and puts what they have in the band together.
SplitColumns Threshold::split(const Band& band, bool of_mass, float least, const Threads& threads) {
  parts_.assign(counts_.size(), {});
  few_z_.resize(chunks() * kChunk + kLanesOfArithmetic);
  const Split split{band.low, band.high, of_mass, least, largest_ - kMassless, largest_};
  read(of_mass ? least : band.low, threads, [&](int64_t chunk, const float* z) {
    parts_[chunk] = arithmetic().split(z, counts_[chunk], split, few_z_.data() + chunk * kChunk);
  });
  SplitColumns sum;
  for (size_t chunk = 0; chunk < parts_.size(); ++chunk) {
    const SplitColumns& part = parts_[chunk];
    sum.all += part.all;
    sum.above += part.above;
    sum.inside = close_up(chunk, part.inside, sum.inside);
  }
  return sum;
}

// Moves what a chunk has in the band behind that of the chunks before it.
int64_t Threshold::close_up(int64_t chunk, int64_t inside, int64_t before) {
  const float* from = few_z_.data() + chunk * kChunk;
  std::copy(from, from + inside, few_z_.data() + before);
  return before + inside;
}

// Weighs the collected columns, if masses are asked for, and measures them; they are at least
// `low`.
Measure Threshold::few(int64_t count, float low, bool of_mass) {
  if (of_mass) {
    few_weights_.resize(few_z_.size());
    std::fill_n(few_z_.data() + count, kLanesOfArithmetic, -kInfinity);
    std::copy_n(few_z_.data(), count + kLanesOfArithmetic, few_weights_.data());
    arithmetic().exponentiate(few_weights_.data(), count, largest_);
  }
  return of_few(count, low, of_mass);
}

// The same among the collected columns, which become fewer: those from the largest on have less
// than is needed, `before` of it without them, and all of them enough, `with_all`.
Threshold::Boundary Threshold::among(const Need& need, Range range, int64_t before,
                                     int64_t with_all) {
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
    const Measure at_pivot = of_few(range.count, pivot, need.of_mass());
    const bool enough = before + need.in(at_pivot) >= need.amount;
    if (enough) {
      with_all = before + need.in(at_pivot);
    } else {
      before += need.in(at_pivot);
    }
    range =
        keep_few(range.count, enough ? pivot : range.least, enough ? end : pivot, need.of_mass());
  }
  return {range.least, before};
}

// Of the collected columns those with low <= z < high.
Range Threshold::keep_few(int64_t count, float low, float high, bool of_mass) {
  float* weights = of_mass ? few_weights_.data() : nullptr;
  return arithmetic().collect(few_z_.data(), weights, count, low, high, few_z_.data(), weights);
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
Threshold::Boundary Threshold::among_few(const Need& need, int64_t count, int64_t before) const {
  std::vector<std::pair<float, int64_t>> columns(count);  // z, and what it adds
  for (int64_t i = 0; i < count; ++i) {
    columns[i] = {few_z_[i], need.of_mass() ? mass_of(few_weights_[i]) : 1};
  }
  std::sort(columns.begin(), columns.end(), [](auto a, auto b) { return a.first > b.first; });
  Boundary boundary{kInfinity, before};
  for (const auto& [z, amount] : columns) {
    if (z < boundary.value) boundary = {z, before};
    before += amount;
    if (before >= need.amount) break;
  }
  return boundary;
}

Threshold& threshold_of_thread() {
  thread_local Threshold threshold;
  return threshold;
}

}  // namespace rdk::cpu
