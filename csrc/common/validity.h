// Which values are sound, for CPU operators and CUDA kernels alike: of a distribution (DESIGN
// section 4, "Columns of a softmax") and of a packed batch ("Bad input").
#pragma once

#include "../params.h"

namespace rdk {

// Neither negative nor infinite; false for NaN.
RDK_HOST_DEVICE bool usable_temperature(float temperature) {
  constexpr float kLargestFloat = 3.402823466e+38f;
  return temperature >= 0.0f && temperature <= kLargestFloat;
}

// What a sequence owns of all that is proposed.
struct Owned {
  int64_t start;  // what the sequences before it have
  int64_t count;
  int64_t token;  // where its tokens begin
  int64_t row;    // and its rows of the drafter
};

// Offsets out of order or outside [0, N] leave the sequence with nothing.
RDK_HOST_DEVICE Owned owned(const Proposed& all, int64_t sequence) {
  if (all.offsets == nullptr) {
    return {sequence * all.each, all.each, sequence * all.token_stride, sequence * all.places};
  }
  const int64_t begin = all.offsets[sequence];
  const int64_t end = all.offsets[sequence + 1];
  const bool sound = 0 <= begin && begin <= end && end <= all.count;
  const int64_t start = begin < 0 ? 0 : begin < all.count ? begin : all.count;
  return {start, sound ? end - begin : 0, start, start};
}

}  // namespace rdk
