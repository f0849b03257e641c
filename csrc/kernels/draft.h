// draft on a GPU: what its kernel is launched with, and what host and kernel agree on.
#pragma once

#include "launch.h"

namespace rdk {

struct DraftLaunch {
  using Params = DraftParams;
  static constexpr int kMaxThreads = 256;  // of a block
  Params params;
  LaunchShape shape;
  int splits;          // blocks that share a row
  unsigned* tickets;   // [rows], zero at the start
  ChunkSum* chunks;    // [rows, chunks]
  float* spread_sums;  // [rows, R, chunks]
};

}  // namespace rdk
