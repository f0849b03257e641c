// step_seeds: a fresh key for every decoding step (DESIGN section 5). Memory floor: 24 bytes a
// seed.

#include "step_seeds.h"

#include "launch_kernel.cuh"
#include "philox.h"

namespace rdk {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) step_seeds_kernel(const StepSeedsLaunch launch) {
  const StepSeedsParams& params = launch.params;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < params.count) params.step_seeds[i] = step_seed(params.seeds[i], params.positions[i]);
}

}  // namespace

#if !defined(__CUDACC_RTC__)

void plan_step_seeds(const Machine&, StepSeedsLaunch* launch) {
  launch->shape = {divide_up(launch->params.count, kThreads), kThreads, 0, 0, 0};
}

void place_step_seeds(void*, StepSeedsLaunch*) {}  // needs none

cudaError_t launch_step_seeds(const StepSeedsLaunch& launch, cudaStream_t stream) {
  return launch_kernel(step_seeds_kernel, launch, stream);
}

#endif

}  // namespace rdk
