// Starts the kernels that the module is linked with: compiled by nvcc, or run by the emulator.
#pragma once

#include "compat.cuh"
#include "launch.h"

namespace rdk {

// The compute capability, such as 90, that the kernels on the current device were compiled for: an
// earlier one than the device's where its driver has translated them.
cudaError_t compiled_for(int* capability);

#define RDK_OPERATOR(name, Name, NAME) \
  cudaError_t start(const Name##Launch& launch, cudaStream_t stream);
#include "../operators.def"

}  // namespace rdk
