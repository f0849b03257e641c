// How gather_logits is launched on a GPU.

#include "workspace.h"

namespace rdk {
namespace {

constexpr int kWarps = GatherLogitsLaunch::kThreads / kWarp;

}  // namespace

void plan(const Machine& machine, GatherLogitsLaunch* launch) {
  const GatherLogitsParams& params = launch->params;
  const int64_t wanted = divide_up(params.tokens_per_row, kWarps);
  const int64_t at_once = GatherLogitsLaunch::kBlocks * machine.multiprocessors;
  launch->splits = static_cast<int>(splits_of(wanted, at_once, params.rows));
  launch->shape = {params.tokens_per_row > 0 ? params.rows * launch->splits : 0,
                   GatherLogitsLaunch::kThreads,
                   0,
                   0,
                   0,
                   0};
}

void place(void*, GatherLogitsLaunch*) {}  // needs none

}  // namespace rdk
