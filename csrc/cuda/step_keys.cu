// step_keys: a fresh key for every decoding step (DESIGN section 5). Memory floor: 24 bytes a
// seed.

#include "../common/philox.h"
#include "launch_kernel.cuh"

namespace rdk {
namespace {

constexpr int kThreads = StepKeysLaunch::kThreads;

__global__ void __launch_bounds__(kThreads) step_keys_kernel(const StepKeysLaunch launch) {
  wait_for_earlier_kernels();
  const StepKeysParams& params = launch.params;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < params.count) {
    params.step_keys[i] = step_key(params.seeds[i], params.positions[i], params.stage);
  }
}

}  // namespace

RDK_START(StepKeys, STEP_KEYS)

}  // namespace rdk
