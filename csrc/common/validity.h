// Which values are sound, for CPU operators and CUDA kernels alike: of a distribution (DESIGN
// section 4, "Columns of a softmax") and of a packed batch ("Bad input").
#pragma once

#include "host_device.h"

namespace rdk {

// Neither negative nor infinite; false for NaN.
RDK_HOST_DEVICE bool usable_temperature(float temperature) {
  constexpr float kLargestFloat = 3.402823466e+38f;
  return temperature >= 0.0f && temperature <= kLargestFloat;
}

// What a sequence owns of a packed list.
struct Owned {
  int64_t start;
  int64_t count;
};

// Offsets out of order or outside [0, total] leave the sequence with nothing.
RDK_HOST_DEVICE Owned owned(const int32_t* offsets, int64_t sequence, int64_t total) {
  const int64_t begin = offsets[sequence];
  const int64_t end = offsets[sequence + 1];
  const bool sound = 0 <= begin && begin <= end && end <= total;
  return {begin < 0 ? 0 : begin < total ? begin : total, sound ? end - begin : 0};
}

}  // namespace rdk
