// One position of a sequence under verification: the target's p and the draft's q, by one warp,
// from chunk sums that are already there. Both methods judge it by these: verify_token.cuh accepts
// token by token, verify_block.cuh by block.
#pragma once

#include "affinity.cuh"

namespace rdk {

enum class Verdict : int32_t { kAccepted, kRejected, kBonus, kStopped };

// In shared memory, written by the warp that decides a position and read by all.
struct Position : Draft {
  Verdict verdict;
  KeptSums target;
  int argmax;  // at target temperature 0
  float p;     // at the drafted token, by block
};

// What a block needs to know of its sequence, in shared memory.
struct Sequence {
  int64_t index;
  int64_t start;  // drafts of the sequences before it
  int64_t token;  // where its drafted tokens begin
  int64_t row;    // and its rows of the drafter
  int64_t step_key;
  int64_t position;
  int count;  // drafts that are considered: at most max_draft, up to the first -1
  float target_temperature;
  float draft_temperature;
};

// The first drafts of a sequence, in shared memory.
struct FirstDrafts {
  int64_t token[kWarp];
  int row[kWarp];
};

// By one warp, which looks for the first -1 with all of its lanes: one by one, each token would
// cost the time of a load.
RDK_DEVICE int drafts_considered(const Proposed& proposed, const Owned& drafts, int64_t max_draft,
                                 int begin = 0) {
  int count = static_cast<int>(min(drafts.count, max_draft));
#pragma unroll 1
  for (; begin < count; begin += kWarp) {
    const int j = begin + lane_index();
    const bool ends = j < count && proposed.token_ids[drafts.token + j] == -1;
    const unsigned found = __ballot_sync(kAllLanes, ends);
    if (found != 0) count = begin + __ffs(found) - 1;
  }
  return count;
}

// By the first two warps, so that neither what they ask for nor the constants that say where it is
// wait for each other.
RDK_DEVICE void load_sequence(const VerifyParams& params, int64_t index, Sequence* sequence,
                              FirstDrafts* first) {
  if (warp_index() == 1 && lane_index() == 0) {
    sequence->step_key = params.sequences.step_keys[index];
    sequence->position = params.sequences.positions[index];
    sequence->target_temperature = params.sequences.temperature[index];
    sequence->draft_temperature = params.draft_rows.temperature[index];
  }
  if (warp_index() != 0) return;
  const Owned drafts = owned(params.drafts, index);
  int count =
      drafts_considered(params.drafts, drafts, params.max_draft, first == nullptr ? 0 : kWarp);
  if (first != nullptr) {
    const int j = lane_index();
    const bool there = j < count;
    const int row = there ? params.draft_rows.row(drafts.row + j) : 0;
    const int64_t token = there ? params.drafts.token_ids[drafts.token + j] : 0;
    first->row[j] = row;
    first->token[j] = token;
    const unsigned found = __ballot_sync(kAllLanes, token == -1);
    if (found != 0) count = __ffs(found) - 1;
  }
  if (lane_index() != 0) return;
  sequence->index = index;
  sequence->start = drafts.start;
  sequence->token = drafts.token;
  sequence->row = drafts.row;
  sequence->count = count;
}

// Where a step's token is, which draft it is among all, and the row of the target that judges it.
RDK_DEVICE int64_t token_of(const Sequence& sequence, int step) { return sequence.token + step; }
RDK_DEVICE int64_t draft_of(const Sequence& sequence, int step) { return sequence.row + step; }
RDK_DEVICE int64_t row_of(const Sequence& sequence, int step) {
  return sequence.start + sequence.index + step;
}
// The first step that is judged together with the others.
RDK_DEVICE int first_step(const Sequence&) { return 0; }
// Blocks before these drafts.
RDK_DEVICE unsigned nesting_of(const Sequence&) { return 0; }

RDK_DEVICE float target_p(const Position& position, float z) {
  return expf(z - position.target.max) / position.target.total;
}

// By one warp, a word each: from shared memory to what blocks exchange, and back.
template <typename Value>
constexpr int kWords = sizeof(Value) / sizeof(int);
template <typename Value>
RDK_DEVICE void store_words(const Value& value, Value* exchanged) {
  if (lane_index() >= kWords<Value>) return;
  const int word = reinterpret_cast<const int*>(&value)[lane_index()];
  global_store(reinterpret_cast<int*>(exchanged) + lane_index(), word);
}
template <typename Value>
RDK_DEVICE void load_words(const Value* exchanged, Value* value) {
  if (lane_index() >= kWords<Value>) return;
  const int word = global_load(reinterpret_cast<const int*>(exchanged) + lane_index());
  reinterpret_cast<int*>(value)[lane_index()] = word;
}
constexpr int kDraftWords = kWords<Draft>;
static_assert(kDraftWords <= kWarp);
RDK_DEVICE int load_draft(const Draft* looked_up) {
  if (looked_up == nullptr || lane_index() >= kDraftWords) return 0;
  return global_load(reinterpret_cast<const int*>(looked_up) + lane_index());
}

// What all that judges the drafts of a sequence works on. T is the target's type, D the drafter's,
// C what rows are, L the launch struct of an operator that verifies, and S a Sequence or what a
// walk down a tree makes of one (verify_tree.cuh).
template <typename T, typename D, typename C, typename L, typename S>
struct Judge {
  using Launch = L;
  using TargetRow = TargetColumns<T, C>;
  static constexpr int kWarps = L::kThreads / kWarp;
  static constexpr bool kCuts = C::kCuts;
  const L& launch;
  const S& sequence;
  int draft_chunks;
  unsigned char* shared;               // dynamic
  const FirstDrafts* first = nullptr;  // where they are known

  RDK_DEVICE TargetRow target_row(int step, const C& cut) const {
    const VerifyParams& params = launch.params;
    const Rows& rows = params.target.logits;  // of two dimensions, so of one stride
    const int64_t row = row_of(sequence, step);
    return {Logits<T>(params.target.dtype, rows.data, row * rows.inner_stride),
            static_cast<int>(params.affinity.target_size), Scale(sequence.target_temperature), cut,
            C::Mask::of(params.target.allowed, row)};
  }

  // Where the sums of a step are kept. A block that takes the steps of its sequence in order reuses
  // one slot.
  RDK_DEVICE int64_t slot(int step) const {
    return static_cast<int64_t>(sequence.index) * launch.slots + (launch.slots > 1 ? step : 0);
  }
  RDK_DEVICE ChunkSum* target_sums(int step, int chunks) const {
    return launch.target_chunks + slot(step) * chunks;
  }
  // Of this warp, where its ring was.
  RDK_DEVICE ChunkSum* kept_sums() const {
    return reinterpret_cast<ChunkSum*>(ring_of_warp(shared));
  }

  RDK_DEVICE DraftKind kind_of(int64_t token, int row) const {
    return kind_of_draft(launch.params, token, row, sequence.draft_temperature);
  }

  // The draft's row, cut where the threshold that came with its stats says.
  RDK_DEVICE DraftRow<D, C> draft_row(const Draft& draft) const {
    const VerifyParams& params = launch.params;
    C cut = C::nothing();
    const int64_t width = 2 + params.affinity.rank;
    if (C::kCuts && params.draft_rows.stats_width > width) {
      cut = C::at(draft.stats[width], sequence.draft_temperature);
    }
    return {params.draft, draft.row, sequence.draft_temperature, cut};
  }
  RDK_DEVICE float q(const Draft& draft, int token, const Entries& entries) const {
    if (draft.kind == DraftKind::kUnusable) return 0.0f;
    if (draft.kind == DraftKind::kOneHot) return token == draft.token ? 1.0f : 0.0f;
    return token_q(launch.params.affinity, entries, draft_row(draft), draft.stats, token);
  }

  // The lane's share of the stats that were passed with a row of the drafter's, if there are any.
  RDK_DEVICE float passed_stat(int row) const {
    const VerifyParams& params = launch.params;
    const int width = C::kCuts ? static_cast<int>(params.draft_rows.stats_width)
                               : 2 + static_cast<int>(params.affinity.rank);
    if (params.draft_rows.stats == nullptr || lane_index() >= width) return 0.0f;
    return params.draft_rows.stats[static_cast<int64_t>(row) * width + lane_index()];
  }
  // The stats that were passed, of which a lane has one, or those of this launch's chunk sums.
  RDK_DEVICE void set_draft_stats(int step, float passed, Draft* draft) const {
    const VerifyParams& params = launch.params;
    const int rank = static_cast<int>(params.affinity.rank);
    if (L::kSumsDrafts && params.draft_rows.stats == nullptr) {
      if constexpr (L::kSumsDrafts) {
        const int64_t at = slot(step);
        const Softmax softmax = merge_chunks(launch.draft_chunks + at * draft_chunks, draft_chunks);
        write_draft_stats(softmax, launch.spread_sums + at * rank * draft_chunks, rank,
                          draft->stats);
      }
    } else if (lane_index() < 3 + kMaxRank) {
      draft->stats[lane_index()] = passed;
    }
    __syncwarp(kAllLanes);
    bool finite = true;
#pragma unroll 1
    for (int i = 0; i < 2 + rank; ++i) {
      finite = finite && fabsf(draft->stats[i]) < infinity();
    }
    if (C::kCuts && params.draft_rows.stats_width > 2 + rank) {
      finite = finite && draft->stats[2 + rank] < infinity();
    }
    if (lane_index() == 0 && !(finite && draft->stats[1] > 0.0f)) {
      draft->kind = DraftKind::kUnusable;
    }
    __syncwarp(kAllLanes);
  }

  // By one warp: all of a step's draft. logit(token) is that of the target.
  template <typename Logit>
  RDK_DEVICE void look_up(int step, Logit&& logit, Draft* draft) const {
    const VerifyParams& params = launch.params;
    const bool known = first != nullptr && step < kWarp;
    const int64_t token =
        known ? first->token[step] : params.drafts.token_ids[token_of(sequence, step)];
    const int row = known ? first->row[step] : params.draft_rows.row(draft_of(sequence, step));
    const DraftKind kind = kind_of(token, row);
    // Asked for at once, because each takes as long as all else that is done here.
    const float stat = kind == DraftKind::kRow ? passed_stat(row) : 0.0f;
    const int column = kind == DraftKind::kUnusable ? 0 : static_cast<int>(token);
    const Entries entries = column_entries(params.affinity, column);
    const float of_target = logit(column);
    __syncwarp(kAllLanes);
    if (lane_index() == 0) {
      draft->token = token;
      draft->row = row;
      draft->kind = kind;
    }
    __syncwarp(kAllLanes);
    if (kind == DraftKind::kRow) set_draft_stats(step, stat, draft);
    const float of_draft = q(*draft, column, entries);
    const PhiloxWords words =
        random_words(sequence.step_key, later(sequence.position, step), Purpose::kAccept, 0);
    if (lane_index() == 0) {
      draft->logit = of_target;
      draft->q = of_draft;
      draft->coin = uniform(words.word[0]);
    }
    __syncwarp(kAllLanes);
  }
  RDK_DEVICE void look_up_in(const TargetRow& columns, int step, Draft* draft) const {
    look_up(step, [&](int token) { return columns.logit(token); }, draft);
  }

  // By one warp, which keeps the sums of the row that judges a step.
  RDK_DEVICE void look_at(int step, const TargetRow& columns, Position* position) const {
    const bool greedy = sequence.target_temperature == 0.0f;
    const KeptSums target(target_sums(step, columns.chunks()), columns.chunks(), kept_sums());
    const int argmax = greedy && target.valid ? target.argmax(columns) : -1;
    if (lane_index() == 0) {
      position->target = target;
      position->argmax = argmax;
      if (step >= sequence.count) {
        position->token = position->row = -1;
        position->kind = DraftKind::kUnusable;
      }
    }
    __syncwarp(kAllLanes);
  }

  // By the warps of all blocks that share a row, each from its first chunk on: the sums of a step's
  // drafted row, if it has one and no stats were passed.
  RDK_DEVICE void sum_draft_row(int step, int start, int stride) const {
    const VerifyParams& params = launch.params;
    const int64_t token = params.drafts.token_ids[token_of(sequence, step)];
    const int index = params.draft_rows.row(draft_of(sequence, step));
    if (kind_of(token, index) != DraftKind::kRow) return;
    const int rank = static_cast<int>(params.affinity.rank);
    ChunkSum* draft_sums = launch.draft_chunks + slot(step) * draft_chunks;
    float* spread_sums = launch.spread_sums + slot(step) * rank * draft_chunks;
    const DraftRow<D, Whole> row(params.draft, index, sequence.draft_temperature, Whole{});
    stream_chunks(row, ring_of_warp(shared), start, stride, draft_chunks,
                  [&](int chunk, float (&z)[kPerLane], float largest) {
                    sum_draft_chunk(row, chunk, z, largest, params.affinity.spread, rank,
                                    draft_sums, spread_sums);
                  });
  }
};

}  // namespace rdk
