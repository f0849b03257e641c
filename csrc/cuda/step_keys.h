// step_keys on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

struct StepKeysLaunch {
  using Params = StepKeysParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;
};

}  // namespace rdk
