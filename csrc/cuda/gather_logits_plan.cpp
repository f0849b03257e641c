// How gather_logits is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine& machine, GatherLogitsLaunch* launch) {
  const GatherLogitsParams& params = launch->params;
  const int64_t rows = std::max<int64_t>(1, params.rows);
  // With few tokens in all, blocks of fewer warps, so that every multiprocessor has one: a warp
  // draws no more of the memory's bandwidth because others lie idle.
  int64_t threads = GatherLogitsLaunch::kMaxThreads;
  const auto wanted = [&] { return divide_up(params.tokens_per_row, threads / kWarp); };
  while (threads > kWarp && rows * wanted() < machine.multiprocessors) threads /= 2;
  const int64_t at_once = GatherLogitsLaunch::kBlocks * machine.multiprocessors;
  launch->splits = static_cast<int>(splits_of(wanted(), at_once, params.rows));
  launch->shape = {
      params.tokens_per_row > 0 ? params.rows * launch->splits : 0, threads, 0, 0, 0, 0};
}

void place(void*, GatherLogitsLaunch*) {}  // needs none

}  // namespace rdk
