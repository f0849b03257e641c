// draft on a GPU: its launch, for the torch side, NVRTC and the emulated tests.
#pragma once

#include "launch.h"

namespace rdk {

struct ChunkSum;

struct DraftLaunch {
  using Params = DraftParams;
  Params params;
  LaunchShape shape;
  int splits;          // blocks that share a row
  unsigned* tickets;   // [rows], zero at the start
  ChunkSum* chunks;    // [rows, chunks]
  float* spread_sums;  // [rows, R, chunks]
};

#if !defined(__CUDACC_RTC__)
// Decides everything but params, from them. Then the workspace is allocated, placed and, for its
// first zeroed_bytes, cleared.
void plan_draft(const Machine& machine, DraftLaunch* launch);
void place_draft(void* workspace, DraftLaunch* launch);
cudaError_t launch_draft(const DraftLaunch& launch, cudaStream_t stream);
#endif

}  // namespace rdk
