// Where a temperature is applied to logits, the target's and the drafter's alike: a chunk at a
// time, with its bias. Included by arithmetic_lanes.h, and so compiled once for each instruction
// set.
#pragma once

#include "arithmetic.h"
#include "lanes.h"

namespace rdk::cpu {
namespace {

template <typename Type, bool kMasked>
float scale_as(const ChunkColumns& columns, float* z) {
  const auto* logits = static_cast<const typename Type::Element*>(columns.logits);
  const float* bias = columns.bias;
  const bool divides = columns.temperature != 1.0f;
  const Floats temperature = all(columns.temperature);
  const Floats infinite = all(kInfinite);
  const Floats minus_infinite = all(-kInfinite);
  Floats largest = minus_infinite;
  Mask usable = infinite == infinite;
  for (int64_t i = 0; i < columns.count; i += kLanes) {
    const int64_t left = columns.count - i;
    const bool whole = left >= kLanes;
    Floats logit =
        whole ? Type::load(logits + i) : load_some<Type>(logits + i, left, Type::kMinusInfinity);
    if (kMasked) {
      const uint32_t bits = columns.allowed[i / 32] >> (i % 32);
      logit = select(lanes_of_bits(bits), logit, minus_infinite);
    }
    Floats value = logit;
    if (divides) {
      value = value / temperature;
      usable = usable & ~((value == minus_infinite) & (minus_infinite < logit));
    }
    if (bias != nullptr) {
      Floats added = whole ? Float32::load(bias + i) : load_some<Float32>(bias + i, left, 0.0f);
      if (columns.bias_only_masks) added = select(added == minus_infinite, added, all(0.0f));
      value = value + added;
    }
    usable = usable & (value < infinite);
    largest = larger(value, largest);
    store(z + i, value);
  }
  return every_lane(usable) ? largest_lane(largest) : __builtin_nanf("");
}

float scale(const ChunkColumns& columns, float* z) {
  return with_elements(columns.dtype, [&](auto type) {
    using Type = decltype(type);
    return columns.allowed == nullptr ? scale_as<Type, false>(columns, z)
                                      : scale_as<Type, true>(columns, z);
  });
}

}  // namespace
}  // namespace rdk::cpu
