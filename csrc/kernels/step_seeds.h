// step_seeds on a GPU: its launch, for the torch side, NVRTC and the emulated tests.
#pragma once

#include "launch.h"

namespace rdk {

struct StepSeedsLaunch {
  using Params = StepSeedsParams;
  Params params;
  LaunchShape shape;
};

#if !defined(__CUDACC_RTC__)
void plan_step_seeds(const Machine& machine, StepSeedsLaunch* launch);
void place_step_seeds(void* workspace, StepSeedsLaunch* launch);
cudaError_t launch_step_seeds(const StepSeedsLaunch& launch, cudaStream_t stream);
#endif

}  // namespace rdk
