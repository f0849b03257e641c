// How draft is launched on a GPU.

#include "workspace.h"

namespace rdk {

static_assert(DraftLaunch::kStaticSharedBytes + DraftLaunch::kMaxThreads / kWarp * kRingBytes <=
              kAlwaysAllowed);

void plan(const Machine& machine, DraftLaunch* launch) {
  const DraftParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft.draft_size) + chunks_of(params.draft.dynamic_size);
  // With few rows, small blocks all over the chip, with a chunk or two for each warp. With many,
  // one block for each row.
  const bool many = params.rows >= machine.multiprocessors;
  launch->shape.threads = many ? DraftLaunch::kMaxThreads : DraftLaunch::kSmallThreads;
  const int64_t wanted = divide_up(chunks, launch->shape.threads / kWarp);
  const int64_t at_once = DraftLaunch::kSmallBlocks * machine.multiprocessors;
  launch->splits = static_cast<int>(many ? 1 : splits_of(wanted, at_once, params.rows));
  launch->shape.blocks = params.rows * launch->splits;
  launch->shape.shared_bytes = launch->shape.threads / kWarp * kRingBytes;
  if (params.truncation.given) {  // it lies where the rings were
    launch->shape.shared_bytes = std::max<int64_t>(launch->shape.shared_bytes, kThresholdBytes);
  }
  launch->shape.allowed_bytes = 0;
  place(nullptr, launch);
}

void place(void* workspace, DraftLaunch* launch) {
  const DraftParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft.draft_size) + chunks_of(params.draft.dynamic_size);
  WorkspaceParts parts(workspace);
  launch->tickets = parts.take<unsigned>(launch->splits > 1 ? params.rows : 0);
  launch->shape.zeroed_bytes = parts.bytes();
  launch->chunks = parts.take<ChunkSum>(params.rows * chunks);
  launch->spread_sums = parts.take<float>(params.rows * params.affinity.rank * chunks);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
