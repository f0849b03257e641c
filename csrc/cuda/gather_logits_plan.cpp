// How gather_logits is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine& machine, GatherLogitsLaunch* launch) {
  const GatherLogitsParams& params = launch->params;
  const int64_t rows = std::max<int64_t>(1, params.rows);
  // Few tokens have a block each, all at once. With more of them a warp takes one, in blocks that
  // are smaller where large ones would leave multiprocessors without any.
  const int64_t few = GatherLogitsLaunch::kSmallBlocks * machine.multiprocessors;
  launch->together = rows * params.tokens_per_row <= few;
  int64_t threads = GatherLogitsLaunch::kMaxThreads;
  const auto blocks = [&] {
    return launch->together ? params.tokens_per_row
                            : divide_up(params.tokens_per_row, threads / kWarp);
  };
  if (launch->together || rows * blocks() < machine.multiprocessors) {
    threads = GatherLogitsLaunch::kParts * kWarp;
  }
  const int64_t at_once =
      launch->together ? few : GatherLogitsLaunch::kBlocks * machine.multiprocessors;
  launch->splits = static_cast<int>(splits_of(blocks(), at_once, params.rows));
  launch->shape = {
      params.tokens_per_row > 0 ? params.rows * launch->splits : 0, threads, 0, 0, 0, 0};
}

void place(void*, GatherLogitsLaunch*) {}  // needs none

}  // namespace rdk
