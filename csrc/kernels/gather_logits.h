// gather_logits on a GPU: its launch, for the torch side, NVRTC and the emulated tests.
#pragma once

#include "launch.h"

namespace rdk {

struct GatherLogitsLaunch {
  using Params = GatherLogitsParams;
  Params params;
  LaunchShape shape;
  int splits;  // blocks that share a row of hidden states
};

#if !defined(__CUDACC_RTC__)
void plan_gather_logits(const Machine& machine, GatherLogitsLaunch* launch);
void place_gather_logits(void* workspace, GatherLogitsLaunch* launch);
cudaError_t launch_gather_logits(const GatherLogitsLaunch& launch, cudaStream_t stream);
#endif

}  // namespace rdk
