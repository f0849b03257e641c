// How draft is launched on a GPU.

#include "workspace.h"

namespace rdk {

static_assert(DraftLaunch::kStaticSharedBytes + DraftLaunch::kMaxThreads / kWarp * kRingBytes <=
              kAlwaysAllowed);

namespace {

constexpr int64_t kSmallWarps = DraftLaunch::kSmallThreads / kWarp;
constexpr int64_t kMaxWarps = DraftLaunch::kMaxThreads / kWarp;

// Of rows so long, small blocks all over the chip bring the bytes sooner than a cluster.
constexpr int64_t kMostChunksOfCluster = 2 * kMostCluster * kMaxWarps;
static_assert(kMostChunksOfCluster <= kMostHeld);

// With few rows, clusters, which need no cleared tickets; or small blocks all over the chip, with a
// chunk or two for each warp. With many, one block for each row.
void split_rows(const Machine& machine, int64_t rows, int64_t chunks, DraftLaunch* launch) {
  int64_t threads = DraftLaunch::kMaxThreads;
  int64_t splits = 1;
  launch->shape.cluster = 1;
  if (rows < machine.multiprocessors) {
    const int64_t wanted = divide_up(chunks, kSmallWarps);
    if (machine.cluster > 1 && chunks <= kMostChunksOfCluster) {
      const int64_t at_once = DraftLaunch::kBlocks * machine.multiprocessors;
      splits = power_of_two_up_to(std::min(machine.cluster, splits_of(wanted, at_once, rows)));
      threads = std::clamp(divide_up(chunks, splits), kSmallWarps, kMaxWarps) * kWarp;
      launch->shape.cluster = splits;
    } else {
      splits = splits_of(wanted, DraftLaunch::kSmallBlocks * machine.multiprocessors, rows);
      threads = DraftLaunch::kSmallThreads;
    }
  }
  launch->splits = static_cast<int>(splits);
  // Rows that may be cut are searched for a threshold in global memory.
  launch->holds = !launch->params.truncation.given && chunks <= kMostHeld &&
                  (splits == 1 || launch->shape.cluster > 1);
  const DraftParams& params = launch->params;
  launch->plain =
      launch->holds && are_plain(params.draft, params.affinity.spread, params.affinity.rank);
  launch->shape.threads = threads;
}

}  // namespace

void plan(const Machine& machine, DraftLaunch* launch) {
  const DraftParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft);
  split_rows(machine, params.rows, chunks, launch);
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
  const int64_t chunks = chunks_of(params.draft);
  WorkspaceParts parts(workspace);
  const bool tickets = launch->splits > 1 && launch->shape.cluster <= 1;
  launch->tickets = parts.take<uint64_t>(tickets ? params.rows : 0);
  launch->shape.ticket_bytes = parts.bytes();
  launch->chunks = parts.take<ChunkSum>(params.rows * chunks);
  launch->spread_sums = parts.take<float>(params.rows * params.affinity.rank * chunks);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
