// How redistribute is launched on a GPU.

#include "workspace.h"

namespace rdk {
namespace {

constexpr int64_t kTokens = RedistributeLaunch::kTokens;
constexpr int64_t kTogether = 2;  // blocks

int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Whether a row's exp(z - max) is computed once for a tile, and not anew for each entry of S in it:
// an entry of its own costs two loads from anywhere, about four times what a column costs in order.
bool weights_pay(const RedistributeParams& params, int64_t tiles) {
  return params.affinity.entries / tiles >= params.draft.draft_size / 4;
}

}  // namespace

void plan(const Machine& machine, RedistributeLaunch* launch) {
  const RedistributeParams& params = launch->params;
  const int64_t cut_bytes = params.truncation.given ? RedistributeLaunch::kCutBytes : 0;
  const int64_t limit =
      std::max<int64_t>(1, most_shared_bytes<RedistributeLaunch>(machine) - cut_bytes);
  const int64_t row_bytes = launch->weights_stride() * static_cast<int64_t>(sizeof(float));
  const int64_t mark_bytes = params.draft.dynamic_size > 0 ? 1 : 0;
  const int64_t rows = params.rows > 0 ? params.rows : 1;
  const int64_t target_size = params.affinity.target_size;
  const int64_t most_tiles = divide_up(target_size, kTokens);

  // Tiles of a group: enough for a block on every multiprocessor, or more, so that the marks of a
  // tile fit next to so many bytes for each row. 0 if not even those of kTokens fit.
  const auto tiles_of = [&](int64_t group, int64_t bytes) -> int64_t {
    const int64_t groups = divide_up(rows, group);
    const int64_t wanted = groups < machine.multiprocessors ? machine.multiprocessors / groups : 1;
    const int64_t room = limit / group - bytes;
    if (room < 0 || (mark_bytes > 0 && room < kTokens)) return 0;
    const int64_t fitting = mark_bytes > 0 ? divide_up(target_size, room / kTokens * kTokens) : 1;
    return std::min(std::max(wanted, fitting), most_tiles);
  };

  // Sharing a pass over the sparse structure pays once there are blocks for every multiprocessor.
  // If weights leave little room for marks, tiles shrink. Each tile sums its rows again, so shared
  // weights are used only while there are at most twice as many tiles as without them.
  int64_t tiles = std::max<int64_t>(1, tiles_of(1, 0));
  const int64_t most = 2 * tiles;
  launch->group = 1;
  launch->shared_weights = false;
  for (int group = RedistributeLaunch::kMaxGroup; group >= 1; group /= 2) {
    if (group > 1 && divide_up(rows, group) < machine.multiprocessors) continue;
    const int64_t with_weights = tiles_of(group, row_bytes);
    if (with_weights == 0 || with_weights > most || !weights_pay(params, with_weights)) continue;
    tiles = with_weights;
    launch->group = group;
    launch->shared_weights = true;
    break;
  }
  // Where weights are not shared, a cluster sums a plain row together, with a warp for each chunk.
  // Of two blocks, because multiprocessors come in pairs: larger ones might leave some without any.
  const int64_t chunks = chunks_of(params.draft);
  const bool holds = !launch->shared_weights && !params.truncation.given && chunks <= kMostHeld &&
                     are_plain(params.draft, params.affinity.spread, params.affinity.rank);
  const int64_t most_together = std::min(kTogether, std::min(machine.cluster, tiles));
  launch->shape.cluster = holds ? power_of_two_up_to(most_together) : 1;
  launch->tile = static_cast<int>(round_up(divide_up(target_size, tiles), kTokens));
  launch->tiles =
      static_cast<int>(round_up(divide_up(target_size, launch->tile), launch->shape.cluster));
  launch->shape.blocks = divide_up(params.rows, launch->group) * launch->tiles;
  launch->shape.threads = RedistributeLaunch::kThreads;
  launch->shape.shared_bytes =
      cut_bytes + (launch->shape.cluster > 1 ? kHeldBytes : 0) +
      launch->group * ((launch->shared_weights ? row_bytes : 0) + mark_bytes * launch->tile);
  launch->shape.allowed_bytes = allowed_bytes<RedistributeLaunch>(machine);
  place(nullptr, launch);
}

void place(void* workspace, RedistributeLaunch* launch) {
  const RedistributeParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft);
  const int64_t rows = launch->shape.blocks * launch->group;
  WorkspaceParts parts(workspace);
  launch->chunks = parts.take<ChunkSum>(rows * chunks);
  launch->spread_sums = parts.take<float>(rows * params.affinity.rank * chunks);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
