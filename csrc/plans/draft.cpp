// How draft is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine& machine, DraftLaunch* launch) {
  const DraftParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft.draft_size) + chunks_of(params.draft.dynamic_size);
  // Few rows: a chunk or two for each warp of small blocks, all over the chip. Many: a block a row.
  const bool many = params.rows >= machine.multiprocessors;
  launch->shape.threads = many ? DraftLaunch::kMaxThreads : 2 * kWarp;
  const int64_t room = divide_up(4 * machine.multiprocessors, params.rows > 0 ? params.rows : 1);
  const int64_t wanted = divide_up(chunks, launch->shape.threads / kWarp);
  launch->splits = static_cast<int>(many ? 1 : (wanted < room ? wanted : room));
  launch->shape.blocks = params.rows * launch->splits;
  launch->shape.shared_bytes = launch->shape.threads / kWarp * kRingBytes;
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
