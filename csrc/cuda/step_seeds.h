// step_seeds on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

struct StepSeedsLaunch {
  using Params = StepSeedsParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;
};

}  // namespace rdk
