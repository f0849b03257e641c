// Plans of operators that need no more than a few lines: how they are launched on a GPU.

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

// A block for each row. Rows are many: positions of a text.
void plan(const Machine& machine, OverlapLaunch* launch) {
  const int64_t bytes = (launch->params.draft.draft_size + 3) / 4 * 4 * sizeof(float);
  launch->shared_weights = bytes <= most_shared_bytes<OverlapLaunch>(machine);
  place(nullptr, launch);
  launch->shape.blocks = launch->params.rows;
  launch->shape.threads = OverlapLaunch::kThreads;
  launch->shape.shared_bytes = launch->shared_weights ? bytes : 0;
  launch->shape.allowed_bytes = allowed_bytes<OverlapLaunch>(machine);
}

void place(void* workspace, OverlapLaunch* launch) {
  const OverlapParams& params = launch->params;
  const int64_t draft_chunks = chunks_of(params.draft);
  WorkspaceParts parts(workspace);
  launch->target_chunks = parts.take<ChunkSum>(params.rows * chunks_of(params.target.size));
  launch->draft_chunks = parts.take<ChunkSum>(params.rows * draft_chunks);
  launch->spread_sums = parts.take<float>(params.rows * params.affinity.rank * draft_chunks);
  launch->shape.workspace_bytes = parts.bytes();
}

// Few groups of rows are shared by blocks, a warp of which takes a column for each lane.
void plan(const Machine& machine, OverlapBackwardLaunch* launch) {
  using Launch = OverlapBackwardLaunch;
  const OverlapBackwardParams& params = launch->params;
  const int64_t bytes = divide_up(params.draft.target_size, kWarp) * Launch::kGroup * 4;
  const int64_t most = most_shared_bytes<Launch>(machine);
  launch->shared_below = bytes <= most;
  const int64_t blocks =
      launch->shared_below && Launch::kBlocks * bytes > most ? 1 : Launch::kBlocks;
  const int64_t groups = divide_up(params.rows, Launch::kGroup);
  const int64_t wanted =
      divide_up(std::max(params.draft.draft_size, params.draft.dynamic_size), Launch::kThreads);
  launch->splits = static_cast<int>(splits_of(wanted, blocks * machine.multiprocessors, groups));
  launch->shape = {
      groups * launch->splits,       Launch::kThreads, launch->shared_below ? bytes : 0, 0, 0,
      allowed_bytes<Launch>(machine)};
}

void place(void*, OverlapBackwardLaunch*) {}  // needs none

// A thread for each seed.
void plan(const Machine&, StepKeysLaunch* launch) {
  constexpr int64_t kThreads = StepKeysLaunch::kThreads;
  launch->shape = {divide_up(launch->params.count, kThreads), kThreads, 0, 0, 0, 0};
}

void place(void*, StepKeysLaunch*) {}

// A row's chunks are spread over blocks while there are fewer rows than run at once.
void plan(const Machine& machine, SumShardLaunch* launch) {
  constexpr int64_t kWarps = SumShardLaunch::kThreads / kWarp;
  static_assert(kWarps * kRingBytes <= kAlwaysAllowed);
  const SumShardParams& params = launch->params;
  const int64_t rows = params.sequences * (params.max_draft + 1);
  launch->splits =
      static_cast<int>(splits_of(divide_up(params.shard.count, kWarps),
                                 SumShardLaunch::kBlocks * machine.multiprocessors, rows));
  launch->shape = {rows * launch->splits, SumShardLaunch::kThreads, kWarps * kRingBytes, 0, 0, 0};
}

void place(void*, SumShardLaunch*) {}  // needs none

// A block for each sequence.
void plan(const Machine&, VerifyShardLaunch* launch) {
  launch->shape = {launch->params.sequences.count, VerifyShardLaunch::kThreads, 0, 0, 0, 0};
}

void place(void*, VerifyShardLaunch*) {}

// A block for each sequence, which reads one row after the other, because only the token drawn from
// a row says which one is next; or a cluster, for few trees of fixed nodes, as long as every
// scheduler of a multiprocessor has a chunk.
void plan(const Machine& machine, VerifyTreeLaunch* launch) {
  constexpr int64_t kChunks = 4;
  constexpr int64_t kRings = VerifyTreeLaunch::kThreads / kWarp * kRingBytes;
  static_assert(VerifyTreeLaunch::kStaticSharedBytes + kRings <= kAlwaysAllowed);
  static_assert(kThresholdBytes <= kRings, "it lies where the rings were");
  const VerifyTreeParams& params = launch->params;
  const int64_t count = params.sequences.count;
  const int64_t most = params.mixed() || launch->by_block()
                           ? 1
                           : splits_of(divide_up(chunks_of(params.target.size), kChunks),
                                       VerifyTreeLaunch::kBlocks * machine.multiprocessors, count);
  place(nullptr, launch);
  launch->shape.cluster = power_of_two_up_to(std::min(machine.cluster, most));
  launch->shape.blocks = count * launch->shape.cluster;
  launch->shape.threads = VerifyTreeLaunch::kThreads;
  launch->shape.shared_bytes = kRings;
  launch->shape.allowed_bytes = 0;
}

void place(void* workspace, VerifyTreeLaunch* launch) {
  const VerifyTreeParams& params = launch->params;
  const int64_t chunks = chunks_of(params.target.size);
  const int64_t draft_chunks = chunks_of(params.draft);
  const bool by_block = launch->by_block();
  launch->slots =
      static_cast<int>(by_block ? std::min(params.max_draft, params.drafts.count) + 1 : 1);
  const int64_t steps = params.sequences.count * launch->slots;
  const int64_t draft_steps = params.mixed() && params.draft_rows.stats == nullptr ? steps : 0;
  WorkspaceParts parts(workspace);
  launch->target_chunks = parts.take<ChunkSum>(steps * chunks);
  launch->draft_chunks = parts.take<ChunkSum>(draft_steps * draft_chunks);
  launch->spread_sums = parts.take<float>(draft_steps * params.affinity.rank * draft_chunks);
  launch->residual_sums = parts.take<float>(params.mixed() ? params.sequences.count * chunks : 0);
  launch->factors = parts.take<float>(by_block ? steps : 0);
  launch->thresholds = parts.take<float>(by_block ? steps : 0);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
