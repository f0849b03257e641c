// How redistribute is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine& machine, RedistributeLaunch* launch) {
  const RedistributeParams& params = launch->params;
  const int64_t row_bytes = params.draft.draft_size * static_cast<int64_t>(sizeof(float));
  const int64_t mark_bytes = params.draft.dynamic_size > 0 ? 1 : 0;
  const int64_t rows = params.rows > 0 ? params.rows : 1;
  const int64_t target_size = params.affinity.target_size;
  const auto shared_bytes = [&](int64_t group) {
    return (launch->shared_weights ? group * row_bytes : 0) + group * mark_bytes * launch->tile;
  };
  // Sharing a pass over the sparse structure pays once there are blocks for every multiprocessor.
  for (launch->group = RedistributeLaunch::kMaxGroup; launch->group >= 1; launch->group /= 2) {
    const int64_t groups = divide_up(rows, launch->group);
    if (launch->group > 1 && groups < machine.multiprocessors) continue;
    const int64_t tiles = groups < machine.multiprocessors ? machine.multiprocessors / groups : 1;
    launch->tile =
        static_cast<int>(divide_up(target_size, tiles < target_size ? tiles : target_size));
    launch->shared_weights = true;
    if (shared_bytes(launch->group) <= machine.shared_bytes) break;
    launch->shared_weights = false;
    if (launch->group == 1) break;
  }
  // Marks of a tile must fit by themselves; smaller tiles only mean more blocks.
  if (shared_bytes(launch->group) > machine.shared_bytes)
    launch->tile = static_cast<int>(machine.shared_bytes);
  launch->tiles = static_cast<int>(divide_up(target_size, launch->tile));
  launch->shape.blocks = divide_up(params.rows, launch->group) * launch->tiles;
  launch->shape.threads = RedistributeLaunch::kThreads;
  launch->shape.shared_bytes = shared_bytes(launch->group);
  place(nullptr, launch);
}

void place(void* workspace, RedistributeLaunch* launch) {
  const RedistributeParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft.draft_size) + chunks_of(params.draft.dynamic_size);
  WorkspaceParts parts(workspace);
  launch->shape.zeroed_bytes = 0;
  launch->chunks = parts.take<ChunkSum>(launch->shape.blocks * chunks);
  launch->spread_sums = parts.take<float>(launch->shape.blocks * params.affinity.rank * chunks);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
