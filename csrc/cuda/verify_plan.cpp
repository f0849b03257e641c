// How verify is launched on a GPU.

#include "workspace.h"

namespace rdk {
namespace {

constexpr int kWarps = VerifyLaunch::kThreads / kWarp;
static_assert(VerifyLaunch::kStaticSharedBytes + kWarps * kRingBytes <= kAlwaysAllowed);
static_assert(kThresholdBytes <= kWarps * kRingBytes, "it lies where the rings were");

// A split sequence and a queue keep the sums of every step that each sequence might take,
// B * max_draft of them: about 10 MB if both are large. A call that needs more takes its steps in
// order.
constexpr int64_t kMostSplitBytes = int64_t{64} << 20;

// Splitting pays while there are more multiprocessors than sequences. With more sequences, one
// block for each has enough loads in flight, and not reading rows after a rejection saves more.
VerifyOrder order_of(const Machine& machine, int64_t sequences) {
  const bool many = sequences >= machine.multiprocessors;
  return environment().verify_order.value_or(many ? VerifyOrder::kInOrder : VerifyOrder::kSplit);
}

// Blocks that share a sequence, or parts of a row in a queue. Small parts spread a step of few
// sequences over all blocks, and each costs a block the time to draw it: so there are about as many
// items in a step as blocks.
int64_t splits_in(VerifyOrder order, const VerifyParams& params, int64_t at_once) {
  const int64_t sequences = std::max<int64_t>(1, params.sequences.count);
  const int64_t chunks = chunks_of(params.affinity.target_size);
  if (order == VerifyOrder::kInOrder) return 1;
  if (order == VerifyOrder::kQueue) {
    return std::min(divide_up(chunks, kWarps), divide_up(at_once, sequences));
  }
  const int64_t rows_each = divide_up(params.drafts.count, sequences) + 1;
  return splits_of(divide_up(rows_each * chunks, kWarps), at_once, sequences);
}

}  // namespace

void plan(const Machine& machine, VerifyLaunch* launch) {
  const VerifyParams& params = launch->params;
  const int64_t at_once = VerifyLaunch::kBlocks * machine.multiprocessors;
  const auto order_work = [&](VerifyOrder order) {
    launch->splits = static_cast<int>(splits_in(order, params, at_once));
    const bool alone = order == VerifyOrder::kSplit && launch->splits == 1;
    launch->order = alone ? VerifyOrder::kInOrder : order;
    place(nullptr, launch);
  };
  order_work(order_of(machine, params.sequences.count));
  if (launch->order != VerifyOrder::kInOrder && launch->shape.workspace_bytes > kMostSplitBytes) {
    order_work(VerifyOrder::kInOrder);
  }
  const bool queued = launch->order == VerifyOrder::kQueue;
  const int64_t shares = params.sequences.count * launch->splits * (queued ? launch->slots : 1);
  launch->shape.blocks = queued ? std::min(shares, at_once) : shares;
  launch->shape.threads = VerifyLaunch::kThreads;
  launch->shape.shared_bytes = kWarps * kRingBytes;
  launch->shape.allowed_bytes = 0;
}

void place(void* workspace, VerifyLaunch* launch) {
  const VerifyParams& params = launch->params;
  const int64_t target_chunks = chunks_of(params.affinity.target_size);
  const int64_t draft_chunks =
      chunks_of(params.draft.draft_size) + chunks_of(params.draft.dynamic_size);
  const int64_t longest = std::min(params.max_draft, params.drafts.count);
  const bool split = launch->order != VerifyOrder::kInOrder;
  const bool queued = launch->order == VerifyOrder::kQueue;
  const bool every_row = split || launch->by_block();
  launch->slots = static_cast<int>(every_row ? longest + 1 : 1);
  const int64_t steps = params.sequences.count * launch->slots;
  const int64_t draft_steps = params.draft_rows.stats == nullptr ? steps : 0;
  WorkspaceParts parts(workspace);
  launch->tickets = parts.take<unsigned>(queued ? steps : split ? params.sequences.count : 0);
  launch->queue = parts.take<VerifyQueue>(queued ? 1 : 0);
  launch->ended = parts.take<unsigned>(queued ? params.sequences.count : 0);
  launch->shape.zeroed_bytes = parts.bytes();
  launch->target_chunks = parts.take<ChunkSum>(steps * target_chunks);
  launch->draft_chunks = parts.take<ChunkSum>(draft_steps * draft_chunks);
  launch->spread_sums = parts.take<float>(draft_steps * params.affinity.rank * draft_chunks);
  launch->residual_sums = parts.take<float>(params.sequences.count * target_chunks);
  const bool raw = params.logprobs_of == Logprobs::kRaw;
  launch->raw_chunks = parts.take<ChunkSum>(raw ? params.sequences.count * target_chunks : 0);
  const int64_t prefixes = launch->by_block() ? steps : 0;
  launch->factors = parts.take<float>(prefixes);
  launch->thresholds = parts.take<float>(prefixes);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
