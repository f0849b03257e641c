// What kernels are launched with, and what they and the plans of their launches (plans/) agree on.
// NVRTC compiles this too.
#pragma once

#include "../params.h"

namespace rdk {

constexpr int kWarp = 32;

// Where a warp's chunks land that it has asked for but not yet used: this much shared memory.
constexpr int kRingBytes = 4096;

struct ChunkSum {
  float max;
  float sum;  // of exp(z - max); NaN or infinite where the row has no distribution
};

struct LaunchShape {
  int64_t blocks;
  int64_t threads;
  int64_t shared_bytes;
  int64_t workspace_bytes;
  int64_t zeroed_bytes;  // of the workspace, from its start, zero before the launch
};

}  // namespace rdk
