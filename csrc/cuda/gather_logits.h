// gather_logits on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

struct GatherLogitsLaunch {
  using Params = GatherLogitsParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;
  int splits;  // blocks that share a row of hidden states
};

}  // namespace rdk
