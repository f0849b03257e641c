// How every operator is launched on a GPU.

#include "../common/named_tokens.h"
#include "workspace.h"

namespace rdk {

// With few rows, clusters, which need no cleared tickets; or small blocks all over the chip, with a
// chunk or two for each warp. With many, one block for each row.
static void split_rows(const Machine& machine, int64_t rows, int64_t chunks, DraftLaunch* launch) {
  constexpr int64_t kSmallWarps = DraftLaunch::kSmallThreads / kWarp;
  constexpr int64_t kMaxWarps = DraftLaunch::kMaxThreads / kWarp;
  // Of rows so long, small blocks all over the chip bring the bytes sooner than a cluster.
  constexpr int64_t kMostChunksOfCluster = 2 * kMostCluster * kMaxWarps;
  static_assert(kMostChunksOfCluster <= kMostHeld);
  static_assert(DraftLaunch::kStaticSharedBytes + kMaxWarps * kRingBytes <= kAlwaysAllowed);
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

Workspace plan(const Machine& machine, DraftLaunch* launch) {
  const DraftParams& params = launch->params;
  const int64_t chunks = chunks_of(params.draft);
  split_rows(machine, params.rows, chunks, launch);
  launch->shape.blocks = params.rows * launch->splits;
  launch->shape.shared_bytes = launch->shape.threads / kWarp * kRingBytes;
  if (params.truncation.given) {  // it lies where the rings were
    launch->shape.shared_bytes = std::max<int64_t>(launch->shape.shared_bytes, kThresholdBytes);
  }
  const bool tickets = launch->splits > 1 && launch->shape.cluster <= 1;
  Workspace workspace;
  workspace.add(&launch->tickets, tickets ? params.rows : 0);
  launch->shape.ticket_bytes = workspace.bytes();
  workspace.add(&launch->chunks, params.rows * chunks);
  workspace.add(&launch->spread_sums, params.rows * params.affinity.rank * chunks);
  return workspace;
}

// Whether a row's exp(z - max) is computed once for a tile, and not anew for each entry of S in it:
// an entry of its own costs two loads from anywhere, about four times what a column costs in order.
static bool weights_pay(const RedistributeParams& params, int64_t tiles) {
  return params.affinity.entries / tiles >= params.draft.draft_size / 4;
}

Workspace plan(const Machine& machine, RedistributeLaunch* launch) {
  constexpr int64_t kTokens = RedistributeLaunch::kTokens;
  constexpr int64_t kTogether = 2;  // blocks
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
  const int64_t summed = launch->shape.blocks * launch->group;  // rows, each by each of its blocks
  Workspace workspace;
  workspace.add(&launch->chunks, summed * chunks);
  workspace.add(&launch->spread_sums, summed * params.affinity.rank * chunks);
  return workspace;
}

// Splitting pays while there are more multiprocessors than sequences. With more sequences, one
// block for each has enough loads in flight, and not reading rows after a rejection saves more.
static int64_t splits_in(const Machine& machine, const VerifyLaunch& launch) {
  const VerifyParams& params = launch.params;
  const int64_t sequences = std::max<int64_t>(1, params.sequences.count);
  if (sequences >= machine.multiprocessors) return 1;
  const int64_t rows_each = divide_up(params.drafts.count, sequences) + 1;
  const int64_t chunks = rows_each * chunks_of(params.affinity.target_size);
  return splits_of(
      divide_up(chunks, VerifyLaunch::kThreads / kWarp) + (launch.looks_ahead() ? 1 : 0),
      VerifyLaunch::kBlocks * machine.multiprocessors, sequences);
}

// Adds what both operators that judge drafts keep of every step; `slots` says of how many.
template <typename Launch>
static void add_sums(bool has_drafter, Launch* launch, Workspace* workspace) {
  const VerifyParams& params = launch->params;
  const int64_t sequences = params.sequences.count;
  const int64_t steps = sequences * launch->slots;
  const int64_t chunks = chunks_of(params.affinity.target_size);
  const int64_t draft_steps = has_drafter && params.draft_rows.stats == nullptr ? steps : 0;
  const int64_t draft_chunks = draft_steps * chunks_of(params.draft);
  const int64_t prefixes = launch->by_block() ? steps : 0;
  workspace->add(&launch->target_chunks, steps * chunks);
  workspace->add(&launch->draft_chunks, draft_chunks);
  workspace->add(&launch->spread_sums, params.affinity.rank * draft_chunks);
  workspace->add(&launch->residual_sums, has_drafter ? sequences * chunks : 0);
  workspace->add(&launch->factors, prefixes);
  workspace->add(&launch->thresholds, prefixes);
}

static Workspace workspace_of(VerifyLaunch* launch) {
  // Of a direct pass: what is drawn of it is counted in 16 bits, also by blocks that find nothing.
  constexpr int64_t kMostBatches = 1 << 15;
  const VerifyParams& params = launch->params;
  const int64_t target_chunks = chunks_of(params.affinity.target_size);
  const int64_t longest = std::min(params.max_draft, params.drafts.count);
  const bool split = launch->splits > 1;
  const bool every_row = split || launch->by_block();
  launch->slots = static_cast<int>(every_row ? longest + 1 : 1);
  const int64_t steps = params.sequences.count * launch->slots;
  Workspace workspace;
  workspace.add(&launch->tickets, split ? params.sequences.count : 0);
  const int64_t passes = launch->by_block() ? 0 : params.sequences.count;
  workspace.add(&launch->next, passes);
  launch->shape.ticket_bytes = workspace.bytes();
  add_sums(true, launch, &workspace);
  const bool raw = params.logprobs_of == Logprobs::kRaw;
  workspace.add(&launch->raw_chunks, raw ? params.sequences.count * target_chunks : 0);
  workspace.add(&launch->done, passes);
  workspace.add(&launch->posts, passes * kPostBytes);
  launch->batch =
      static_cast<int>(2 * divide_up(std::max<int64_t>(1, target_chunks), 2 * kMostBatches));
  workspace.add(&launch->drafts, launch->looks_ahead() ? steps : 0);
  return workspace;
}

Workspace plan(const Machine& machine, VerifyLaunch* launch) {
  constexpr int64_t kRings = VerifyLaunch::kThreads / kWarp * kRingBytes;
  static_assert(VerifyLaunch::kStaticSharedBytes + kRings <= kAlwaysAllowed);
  static_assert(kThresholdBytes <= kRings, "it lies where the rings were");
  // Sequences that are split keep the sums of every step that each of them might take,
  // B * max_draft: about 10 MB if both are large. A call that needs more is not split.
  constexpr int64_t kMostSplitBytes = int64_t{64} << 20;
  const VerifyParams& params = launch->params;
  launch->splits = static_cast<int>(splits_in(machine, *launch));
  Workspace workspace = workspace_of(launch);
  if (launch->splits > 1 && workspace.bytes() > kMostSplitBytes) {
    launch->splits = 1;
    workspace = workspace_of(launch);
  }
  launch->at_once = static_cast<int>(VerifyLaunch::kBlocks * machine.multiprocessors);
  launch->shape.blocks = params.sequences.count * launch->splits;
  launch->shape.threads = VerifyLaunch::kThreads;
  launch->shape.shared_bytes = kRings;
  return workspace;
}

// A block for each sequence, which reads one row after the other, because only the token drawn from
// a row says which one is next; or a cluster, for few trees of fixed nodes, as long as every
// scheduler of a multiprocessor has a chunk.
Workspace plan(const Machine& machine, VerifyTreeLaunch* launch) {
  constexpr int64_t kChunks = 4;
  constexpr int64_t kRings = VerifyTreeLaunch::kThreads / kWarp * kRingBytes;
  static_assert(VerifyTreeLaunch::kStaticSharedBytes + kRings <= kAlwaysAllowed);
  static_assert(kThresholdBytes <= kRings, "it lies where the rings were");
  const VerifyTreeParams& params = launch->params;
  const int64_t count = params.sequences.count;
  const int64_t chunks = chunks_of(params.target.size);
  const int64_t most = params.mixed() || launch->by_block()
                           ? 1
                           : splits_of(divide_up(chunks, kChunks),
                                       VerifyTreeLaunch::kBlocks * machine.multiprocessors, count);
  const int64_t cluster = power_of_two_up_to(std::min(machine.cluster, most));
  launch->shape = {count * cluster, VerifyTreeLaunch::kThreads, kRings};
  launch->shape.cluster = static_cast<int32_t>(cluster);

  const int64_t longest = std::min(params.max_draft, params.drafts.count);
  launch->slots = static_cast<int>(launch->by_block() ? longest + 1 : 1);
  Workspace workspace;
  add_sums(params.mixed(), launch, &workspace);
  return workspace;
}

Workspace plan(const Machine& machine, GatherLogitsLaunch* launch) {
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
  launch->shape = {params.tokens_per_row > 0 ? params.rows * launch->splits : 0, threads};
  return {};
}

// A block for each row. Rows are many: positions of a text.
Workspace plan(const Machine& machine, OverlapLaunch* launch) {
  const OverlapParams& params = launch->params;
  const int64_t bytes = (params.draft.draft_size + 3) / 4 * 4 * sizeof(float);
  launch->shared_weights = bytes <= most_shared_bytes<OverlapLaunch>(machine);
  launch->shape = {params.rows, OverlapLaunch::kThreads, launch->shared_weights ? bytes : 0, 0,
                   allowed_bytes<OverlapLaunch>(machine)};

  const int64_t draft_chunks = chunks_of(params.draft);
  Workspace workspace;
  workspace.add(&launch->target_chunks, params.rows * chunks_of(params.target.size));
  workspace.add(&launch->draft_chunks, params.rows * draft_chunks);
  workspace.add(&launch->spread_sums, params.rows * params.affinity.rank * draft_chunks);
  return workspace;
}

// Few groups of rows are shared by blocks, a warp of which takes a column for each lane.
Workspace plan(const Machine& machine, OverlapBackwardLaunch* launch) {
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
  launch->shape = {groups * launch->splits, Launch::kThreads, launch->shared_below ? bytes : 0, 0,
                   allowed_bytes<Launch>(machine)};
  return {};
}

// A warp for each row, whose table is as large as the names that it may have to hold.
Workspace plan(const Machine&, NameTokensLaunch* launch) {
  const NameTokensParams& params = launch->params;
  launch->bits = table_bits(params.width);
  launch->tables = nullptr;
  const int64_t blocks = params.width > 0 ? params.rows : 0;
  launch->shape = {blocks, NameTokensLaunch::kThreads};
  Workspace workspace;
  if (launch->bits <= NameTokensLaunch::kMostSharedBits) {
    launch->shape.shared_bytes = (int64_t{1} << launch->bits) * 4;
  } else {
    workspace.add(&launch->tables, params.rows << launch->bits);
  }
  return workspace;
}

// A thread for each seed.
Workspace plan(const Machine&, StepKeysLaunch* launch) {
  constexpr int64_t kThreads = StepKeysLaunch::kThreads;
  launch->shape = {divide_up(launch->params.count, kThreads), kThreads};
  return {};
}

// A row's chunks are spread over blocks while there are fewer rows than run at once.
Workspace plan(const Machine& machine, SumShardLaunch* launch) {
  constexpr int64_t kWarps = SumShardLaunch::kThreads / kWarp;
  static_assert(kWarps * kRingBytes <= kAlwaysAllowed);
  const SumShardParams& params = launch->params;
  const int64_t rows = params.sequences * (params.max_draft + 1);
  launch->splits =
      static_cast<int>(splits_of(divide_up(params.shard.count, kWarps),
                                 SumShardLaunch::kBlocks * machine.multiprocessors, rows));
  launch->shape = {rows * launch->splits, SumShardLaunch::kThreads, kWarps * kRingBytes};
  return {};
}

// A block for each sequence.
Workspace plan(const Machine&, VerifyShardLaunch* launch) {
  launch->shape = {launch->params.sequences.count, VerifyShardLaunch::kThreads};
  return {};
}

}  // namespace rdk
