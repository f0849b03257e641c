// Which values make a distribution, for CPU operators and CUDA kernels alike (DESIGN section 4,
// "Columns of a softmax").
#pragma once

#include "host_device.h"

namespace rdk {

// Neither negative nor infinite; false for NaN.
RDK_HOST_DEVICE bool usable_temperature(float temperature) {
  constexpr float kLargestFloat = 3.402823466e+38f;
  return temperature >= 0.0f && temperature <= kLargestFloat;
}

}  // namespace rdk
