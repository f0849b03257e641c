// How step_seeds is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine&, StepSeedsLaunch* launch) {
  launch->shape = {divide_up(launch->params.count, StepSeedsLaunch::kThreads),
                   StepSeedsLaunch::kThreads,
                   0,
                   0,
                   0,
                   0};
}

void place(void*, StepSeedsLaunch*) {}  // needs none

}  // namespace rdk
