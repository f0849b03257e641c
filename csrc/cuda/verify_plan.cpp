// How verify is launched on a GPU.

#include "workspace.h"

namespace rdk {
namespace {

constexpr int kWarps = VerifyLaunch::kThreads / kWarp;
static_assert(VerifyLaunch::kStaticSharedBytes + kWarps * kRingBytes <= kAlwaysAllowed);
static_assert(kThresholdBytes <= kWarps * kRingBytes, "it lies where the rings were");

// Sequences that are split keep the sums of every step that each of them might take,
// B * max_draft: about 10 MB if both are large. A call that needs more is not split.
constexpr int64_t kMostSplitBytes = int64_t{64} << 20;

// Of a direct pass: what is drawn of it is counted in 16 bits, also by blocks that find nothing.
constexpr int64_t kMostBatches = 1 << 15;

// Splitting pays while there are more multiprocessors than sequences. With more sequences, one
// block for each has enough loads in flight, and not reading rows after a rejection saves more.
int64_t splits_in(const Machine& machine, const VerifyLaunch& launch) {
  const VerifyParams& params = launch.params;
  const int64_t sequences = std::max<int64_t>(1, params.sequences.count);
  if (sequences >= machine.multiprocessors) return 1;
  const int64_t rows_each = divide_up(params.drafts.count, sequences) + 1;
  const int64_t chunks = rows_each * chunks_of(params.affinity.target_size);
  return splits_of(divide_up(chunks, kWarps) + (launch.looks_ahead() ? 1 : 0),
                   VerifyLaunch::kBlocks * machine.multiprocessors, sequences);
}

}  // namespace

void plan(const Machine& machine, VerifyLaunch* launch) {
  const VerifyParams& params = launch->params;
  launch->splits = static_cast<int>(splits_in(machine, *launch));
  place(nullptr, launch);
  if (launch->splits > 1 && launch->shape.workspace_bytes > kMostSplitBytes) {
    launch->splits = 1;
    place(nullptr, launch);
  }
  launch->at_once = static_cast<int>(VerifyLaunch::kBlocks * machine.multiprocessors);
  launch->shape.blocks = params.sequences.count * launch->splits;
  launch->shape.threads = VerifyLaunch::kThreads;
  launch->shape.shared_bytes = kWarps * kRingBytes;
  launch->shape.allowed_bytes = 0;
}

void place(void* workspace, VerifyLaunch* launch) {
  const VerifyParams& params = launch->params;
  const int64_t target_chunks = chunks_of(params.affinity.target_size);
  const int64_t draft_chunks = chunks_of(params.draft);
  const int64_t longest = std::min(params.max_draft, params.drafts.count);
  const bool split = launch->splits > 1;
  const bool every_row = split || launch->by_block();
  launch->slots = static_cast<int>(every_row ? longest + 1 : 1);
  const int64_t steps = params.sequences.count * launch->slots;
  const int64_t draft_steps = params.draft_rows.stats == nullptr ? steps : 0;
  WorkspaceParts parts(workspace);
  launch->tickets = parts.take<uint64_t>(split ? params.sequences.count : 0);
  const int64_t passes = launch->by_block() ? 0 : params.sequences.count;
  launch->next = parts.take<uint64_t>(passes);
  launch->shape.ticket_bytes = parts.bytes();
  launch->target_chunks = parts.take<ChunkSum>(steps * target_chunks);
  launch->draft_chunks = parts.take<ChunkSum>(draft_steps * draft_chunks);
  launch->spread_sums = parts.take<float>(draft_steps * params.affinity.rank * draft_chunks);
  launch->residual_sums = parts.take<float>(params.sequences.count * target_chunks);
  const bool raw = params.logprobs_of == Logprobs::kRaw;
  launch->raw_chunks = parts.take<ChunkSum>(raw ? params.sequences.count * target_chunks : 0);
  const int64_t prefixes = launch->by_block() ? steps : 0;
  launch->factors = parts.take<float>(prefixes);
  launch->thresholds = parts.take<float>(prefixes);
  launch->done = parts.take<uint64_t>(passes);
  launch->posts = parts.take<unsigned char>(passes * kPostBytes);
  launch->batch =
      static_cast<int>(2 * divide_up(std::max<int64_t>(1, target_chunks), 2 * kMostBatches));
  launch->drafts = parts.take<Draft>(launch->looks_ahead() ? steps : 0);
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
