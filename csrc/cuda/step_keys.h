// step_keys on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

#define RDK_STEP_KEYS_KERNELS(kernel) kernel(step_keys_kernel)

struct StepKeysLaunch {
  using Params = StepKeysParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;

  RDK_HOST_DEVICE int kernel() const { return 0; }
};

}  // namespace rdk
