// How redistribute is launched on a GPU.

#include "workspace.h"

namespace rdk {

void plan(const Machine& machine, RedistributeLaunch* launch) {
  const RedistributeParams& params = launch->params;
  const int64_t limit = most_shared_bytes<RedistributeLaunch>(machine);
  const int64_t row_bytes = params.draft.draft_size * static_cast<int64_t>(sizeof(float));
  const int64_t mark_bytes = params.draft.dynamic_size > 0 ? 1 : 0;
  const int64_t rows = params.rows > 0 ? params.rows : 1;
  const int64_t target_size = params.affinity.target_size;

  // Tiles of a group: enough for a block on every multiprocessor, or more, so that the marks of a
  // tile fit next to so many bytes for each row. 0 if not even one mark fits.
  const auto tiles_of = [&](int64_t group, int64_t bytes) -> int64_t {
    const int64_t groups = divide_up(rows, group);
    const int64_t wanted = groups < machine.multiprocessors ? machine.multiprocessors / groups : 1;
    const int64_t room = limit / group - bytes;
    if (room < mark_bytes) return 0;
    const int64_t fitting = mark_bytes > 0 ? divide_up(target_size, room) : 1;
    return std::min(std::max(wanted, fitting), target_size);
  };

  // Sharing a pass over the sparse structure pays once there are blocks for every multiprocessor.
  // If weights leave little room for marks, tiles shrink. Each tile sums its rows again, so shared
  // weights are used only while there are at most twice as many tiles as without them.
  int64_t tiles = tiles_of(1, 0);
  const int64_t most = 2 * tiles;
  launch->group = 1;
  launch->shared_weights = false;
  for (int group = RedistributeLaunch::kMaxGroup; group >= 1; group /= 2) {
    if (group > 1 && divide_up(rows, group) < machine.multiprocessors) continue;
    const int64_t with_weights = tiles_of(group, row_bytes);
    if (with_weights == 0 || with_weights > most) continue;
    tiles = with_weights;
    launch->group = group;
    launch->shared_weights = true;
    break;
  }
  launch->tile = static_cast<int>(divide_up(target_size, tiles));
  launch->tiles = static_cast<int>(divide_up(target_size, launch->tile));
  launch->shape.blocks = divide_up(params.rows, launch->group) * launch->tiles;
  launch->shape.threads = RedistributeLaunch::kThreads;
  launch->shape.shared_bytes =
      launch->group * ((launch->shared_weights ? row_bytes : 0) + mark_bytes * launch->tile);
  launch->shape.allowed_bytes = allowed_bytes<RedistributeLaunch>(machine);
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
