// What truncation does with whole chunks (truncation.cpp). Included by arithmetic_lanes.h, and so
// compiled once for each instruction set.
#pragma once

#include "arithmetic.h"
#include "lanes.h"

namespace rdk::cpu {
namespace {

float exponentiate_kept(const float* z, int64_t count, float threshold, float shift, float* out) {
  const Floats least = all(threshold);
  const Floats shifts = all(shift);
  Floats sums = all(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats logarithm = Float32::load(z + i);
    const Mask below = logarithm < least;
    if (every_lane(below)) {
      store(out + i, all(0.0f));
      continue;
    }
    const Floats value = exponential(select(below, all(-kInfinite), logarithm) - shifts);
    store(out + i, value);
    sums = sums + value;
  }
  return add_lanes(sums);
}

Measure measure(const float* z, const float* weights, int64_t count, float threshold) {
  const Floats least = all(threshold);
  Ints counts = {};
  Masses masses;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Mask below = Float32::load(z + i) < least;
    counts = counts + ones_of(~below);
    if (weights == nullptr) continue;
    masses.add(select(below, all(0.0f), Float32::load(weights + i)));
  }
  // Padding is -inf, below every finite threshold.
  return {add_lanes(counts), masses.sum()};
}

template <bool kOfMass, bool kAbove>
SplitColumns split_as(const float* z, int64_t count, const Split& split, float* out) {
  const bool from_least = split.least > split.massless;
  const Floats leasts = all(split.least);
  const Floats lows = all(split.low);
  const Floats highs = all(split.high);
  const Floats largest = all(split.largest);
  Ints counts = {};
  Masses masses;
  Masses masses_above;
  int64_t inside = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = Float32::load(z + i);
    if (kOfMass) {
      const Mask below = value < leasts;
      if (from_least && every_lane(below)) continue;
      Floats weight = exponential(value - largest);
      if (from_least) weight = select(below, all(0.0f), weight);
      masses.add(weight);
      if (kAbove) masses_above.add(select(value < highs, all(0.0f), weight));
    }
    Mask in_band = ~(value < lows);
    if (kAbove) {
      const Mask under = value < highs;
      if (!kOfMass) counts = counts + ones_of(~under);
      in_band = in_band & under;
    }
    if (kPutsTogetherAtOnce || !no_lane(in_band)) {
      inside += put_together(value, in_band, out + inside);
    }
  }
  return {masses.sum(), kOfMass ? masses_above.sum() : add_lanes(counts), inside};
}

SplitColumns split(const float* z, int64_t count, const Split& split, float* out) {
  const bool above = split.high < kInfinite;
  if (split.of_mass) {
    return above ? split_as<true, true>(z, count, split, out)
                 : split_as<true, false>(z, count, split, out);
  }
  return above ? split_as<false, true>(z, count, split, out)
               : split_as<false, false>(z, count, split, out);
}

template <bool kCoarse>
WeighedColumns weigh_as(const float* z, int64_t count, float low, float high, float shift,
                        float* weights, float* out) {
  constexpr int64_t kAddedInOneGo = 8 * kLanes;
  const Floats lows = all(low);
  const Floats highs = all(high);
  const Floats shifts = all(shift);
  Floats below_band = all(0.0f);
  Floats above_band = all(0.0f);
  int64_t inside = 0;
  for (int64_t begin = 0; begin < count; begin += kAddedInOneGo) {
    const int64_t end = begin + kAddedInOneGo < count ? begin + kAddedInOneGo : count;
    Floats below_sum = all(0.0f);
    Floats above_sum = all(0.0f);
    for (int64_t i = begin; i < end; i += kLanes) {
      const Floats value = Float32::load(z + i);
      const Floats weight =
          kCoarse ? coarse_exponential(value - shifts) : exponential(value - shifts);
      const Mask below = value < lows;
      below_sum = below_sum + select(below, weight, all(0.0f));
      Mask in_band = ~below;
      if (!kCoarse) {
        store(weights + i, weight);
        const Mask under = value < highs;
        above_sum = above_sum + select(under, all(0.0f), weight);
        in_band = in_band & under;
      }
      if (kPutsTogetherAtOnce || !no_lane(in_band)) {
        inside += put_together(value, in_band, out + inside);
      }
    }
    below_band = below_band + below_sum;
    above_band = above_band + above_sum;
  }
  return {add_lanes(below_band), add_lanes(above_band), inside};
}

WeighedColumns weigh(const float* z, int64_t count, float low, float high, float shift,
                     float* weights, float* out) {
  return weights == nullptr ? weigh_as<true>(z, count, low, high, shift, weights, out)
                            : weigh_as<false>(z, count, low, high, shift, weights, out);
}

float keep(const float* z, const float* weights, int64_t count, float threshold, float* out) {
  const Floats least = all(threshold);
  Floats sums = all(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Mask below = Float32::load(z + i) < least;
    const Floats value = select(below, all(0.0f), Float32::load(weights + i));
    store(out + i, value);
    sums = sums + value;
  }
  return add_lanes(sums);
}

Range collect(const float* z, const float* weights, int64_t count, float low, float high,
              float* z_out, float* weights_out) {
  const Floats lows = all(low);
  const Floats highs = all(high);
  Floats least = all(kInfinite);
  Floats largest = all(-kInfinite);
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = Float32::load(z + i);
    const Mask inside = ~(value < lows) & (value < highs);
    if (no_lane(inside)) continue;
    least = smaller(least, select(inside, value, least));
    largest = larger(largest, select(inside, value, largest));
    if (weights != nullptr) put_together(Float32::load(weights + i), inside, weights_out + found);
    found += put_together(value, inside, z_out + found);
  }
  return {found, smallest_lane(least), largest_lane(largest)};
}

void cut(const float* z, int64_t count, float threshold, float* out) {
  const Floats least = all(threshold);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = Float32::load(z + i);
    store(out + i, select(value < least, all(-kInfinite), value));
  }
}

}  // namespace
}  // namespace rdk::cpu
