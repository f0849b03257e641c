// How step_keys is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine&, StepKeysLaunch* launch) {
  launch->shape = {divide_up(launch->params.count, StepKeysLaunch::kThreads),
                   StepKeysLaunch::kThreads,
                   0,
                   0,
                   0,
                   0};
}

void place(void*, StepKeysLaunch*) {}  // needs none

}  // namespace rdk
