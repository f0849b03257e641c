// One position of a sequence under verification: the target's p, the draft's q and the verdict, by
// one warp, from chunk sums that are already there.
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

// By one warp, which looks for the first -1 with all of its lanes: one by one, each token would
// cost the time of a load.
RDK_DEVICE int drafts_considered(const Proposed& proposed, const Owned& drafts, int64_t max_draft) {
  int count = static_cast<int>(min(drafts.count, max_draft));
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kWarp) {
    const int j = begin + lane_index();
    const bool ends = j < count && proposed.token_ids[drafts.token + j] == -1;
    const unsigned found = __ballot_sync(kAllLanes, ends);
    if (found != 0) count = begin + __ffs(found) - 1;
  }
  return count;
}

// By one warp.
RDK_DEVICE void load_sequence(const VerifyParams& params, int64_t index, Sequence* sequence) {
  // Asked for together with the offsets, before what these lead to.
  const int64_t step_key = params.sequences.step_keys[index];
  const int64_t position = params.sequences.positions[index];
  const float target_temperature = params.sequences.temperature[index];
  const float draft_temperature = params.draft_rows.temperature[index];
  const Owned drafts = owned(params.drafts, index);
  const int count = drafts_considered(params.drafts, drafts, params.max_draft);
  if (lane_index() != 0) return;
  *sequence = {index,    drafts.start, drafts.token,       drafts.row,       step_key,
               position, count,        target_temperature, draft_temperature};
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

// Here and in what builds on it, S is a Sequence or what a walk down a tree makes of one
// (verify_tree.cuh), and L the launch struct of either operator.
template <typename T, typename C, typename S>
RDK_DEVICE TargetColumns<T, C> target_row(const VerifyParams& params, const S& sequence, int step,
                                          const C& cut) {
  const Rows& rows = params.target.logits;  // of two dimensions, so of one stride
  const int64_t row = row_of(sequence, step);
  return {Logits<T>(params.target.dtype, rows.data, row * rows.inner_stride),
          static_cast<int>(params.affinity.target_size), Scale(sequence.target_temperature), cut,
          C::Mask::of(params.target.allowed, row)};
}

RDK_DEVICE int draft_row_index(const VerifyParams& params, int64_t draft) {
  return params.draft_rows.index != nullptr ? params.draft_rows.index[draft]
                                            : static_cast<int>(draft);
}

// What the arguments alone say about a draft's distribution. A row may still turn out to have none.
template <typename S>
RDK_DEVICE DraftKind kind_of_draft(const VerifyParams& params, const S& sequence, int64_t token,
                                   int row) {
  if (token < 0 || token >= params.affinity.target_size) return DraftKind::kUnusable;
  if (row == -1) return DraftKind::kOneHot;
  if (row < 0 || row >= params.draft_rows.available) return DraftKind::kUnusable;
  if (sequence.draft_temperature == 0.0f) return DraftKind::kOneHot;
  return usable_temperature(sequence.draft_temperature) ? DraftKind::kRow : DraftKind::kUnusable;
}

RDK_DEVICE float target_p(const Position& position, float z) {
  return expf(z - position.target.max) / position.target.total;
}

// The draft's row, cut where the threshold that came with its stats says.
template <typename T, typename C>
RDK_DEVICE DraftRow<T, C> cut_draft(const VerifyParams& params, const Sequence& sequence,
                                    const Draft& draft) {
  C cut = C::nothing();
  const int64_t width = 2 + params.affinity.rank;
  if (C::kCuts && params.draft_rows.stats_width > width) {
    cut = C::at(draft.stats[width], sequence.draft_temperature);
  }
  return {params.draft, draft.row, sequence.draft_temperature, cut};
}

template <typename T, typename C>
RDK_DEVICE float draft_q(const VerifyParams& params, const Sequence& sequence, const Draft& draft,
                         int token, const Entries& entries, const C&) {
  if (draft.kind == DraftKind::kUnusable) return 0.0f;
  if (draft.kind == DraftKind::kOneHot) return token == draft.token ? 1.0f : 0.0f;
  const DraftRow<T, C> row = cut_draft<T, C>(params, sequence, draft);
  return token_q(params.affinity, entries, row, draft.stats, token);
}

// Where the sums of a step are kept. A block that takes the steps of its sequence in order reuses
// one slot.
template <typename L, typename S>
RDK_DEVICE int64_t slot_of(const L& launch, const S& sequence, int step) {
  return static_cast<int64_t>(sequence.index) * launch.slots + (launch.slots > 1 ? step : 0);
}

// From the chunk sums of this launch.
template <typename L>
RDK_DEVICE void merge_draft_stats(const L& launch, int64_t slot, int draft_chunks, Draft* draft) {
  const int rank = static_cast<int>(launch.params.affinity.rank);
  const Softmax softmax = merge_chunks(launch.draft_chunks + slot * draft_chunks, draft_chunks);
  write_draft_stats(softmax, launch.spread_sums + slot * rank * draft_chunks, rank, draft->stats);
}

// The lane's share of the stats that were passed with a row of the drafter's, if there are any.
template <typename C>
RDK_DEVICE float passed_stat(const VerifyParams& params, int row) {
  const int width = C::kCuts ? static_cast<int>(params.draft_rows.stats_width)
                             : 2 + static_cast<int>(params.affinity.rank);
  if (params.draft_rows.stats == nullptr || lane_index() >= width) return 0.0f;
  return params.draft_rows.stats[static_cast<int64_t>(row) * width + lane_index()];
}

// The stats that were passed, of which a lane has one, or merged ones.
template <typename C, typename L>
RDK_DEVICE void set_draft_stats(const L& launch, int64_t slot, int draft_chunks, float passed,
                                Draft* draft) {
  const VerifyParams& params = launch.params;
  const int rank = static_cast<int>(params.affinity.rank);
  if (params.draft_rows.stats == nullptr) {
    merge_draft_stats(launch, slot, draft_chunks, draft);
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
template <typename D, typename C, typename L, typename S, typename Logit>
RDK_DEVICE void look_up(const L& launch, const S& sequence, int step, int draft_chunks,
                        const C& cut, Logit&& logit, Draft* draft) {
  const VerifyParams& params = launch.params;
  const int64_t token = params.drafts.token_ids[token_of(sequence, step)];
  const int row = draft_row_index(params, draft_of(sequence, step));
  const DraftKind kind = kind_of_draft(params, sequence, token, row);
  // Asked for at once, because each takes as long as all else that is done here.
  const float stat = kind == DraftKind::kRow ? passed_stat<C>(params, row) : 0.0f;
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
  if (kind == DraftKind::kRow) {
    set_draft_stats<C>(launch, slot_of(launch, sequence, step), draft_chunks, stat, draft);
  }
  const float q = draft_q<D>(params, sequence, *draft, column, entries, cut);
  const PhiloxWords words =
      random_words(sequence.step_key, later(sequence.position, step), Purpose::kAccept, 0);
  if (lane_index() == 0) {
    draft->logit = of_target;
    draft->q = q;
    draft->coin = uniform(words.word[0]);
  }
  __syncwarp(kAllLanes);
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

// By one warp, which keeps the sums of the row that judges a step.
template <typename T, typename C, typename L, typename S>
RDK_DEVICE void look_at(const L& launch, const S& sequence, int step,
                        const TargetColumns<T, C>& columns, ChunkSum* kept, Position* position) {
  const bool greedy = sequence.target_temperature == 0.0f;
  const int64_t slot = slot_of(launch, sequence, step);
  const KeptSums target(launch.target_chunks + slot * columns.chunks(), columns.chunks(), kept);
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
template <typename D, typename L, typename S>
RDK_DEVICE void sum_draft_row(const L& launch, const S& sequence, int step, int draft_chunks,
                              int start, int stride, uint4* ring) {
  const VerifyParams& params = launch.params;
  const int64_t token = params.drafts.token_ids[token_of(sequence, step)];
  const int index = draft_row_index(params, draft_of(sequence, step));
  if (kind_of_draft(params, sequence, token, index) != DraftKind::kRow) return;
  const int rank = static_cast<int>(params.affinity.rank);
  const int64_t slot = slot_of(launch, sequence, step);
  ChunkSum* draft_sums = launch.draft_chunks + slot * draft_chunks;
  float* spread_sums = launch.spread_sums + slot * rank * draft_chunks;
  const DraftRow<D, Whole> row(params.draft, index, sequence.draft_temperature, Whole{});
  stream_chunks(row, ring, start, stride, draft_chunks,
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  sum_draft_chunk(row, chunk, z, largest, params.affinity.spread, rank, draft_sums,
                                  spread_sums);
                });
}

// By one warp, of a position that is known but for this. z is that of the target at the draft.
template <typename S>
RDK_DEVICE void judge(const S& sequence, int step, float z, Position* position) {
  Verdict verdict = Verdict::kRejected;
  if (!position->target.valid) {
    verdict = Verdict::kStopped;
  } else if (step >= sequence.count) {
    verdict = Verdict::kBonus;
  } else if (position->kind == DraftKind::kUnusable) {
    verdict = Verdict::kRejected;
  } else if (sequence.target_temperature == 0.0f) {
    verdict = position->token == position->argmax ? Verdict::kAccepted : Verdict::kRejected;
  } else {
    const bool accepts = position->coin * position->q < target_p(*position, z);
    verdict = accepts ? Verdict::kAccepted : Verdict::kRejected;
  }
  __syncwarp(kAllLanes);
  if (lane_index() == 0) position->verdict = verdict;
}

// By one warp, which leaves all results in `position`, and the sums where `kept` says.
template <typename T, typename D, typename C, typename L, typename S>
RDK_DEVICE void decide(const L& launch, const S& sequence, int step, int draft_chunks, const C& cut,
                       ChunkSum* kept, Position* position) {
  const TargetColumns<T, C> columns = target_row<T>(launch.params, sequence, step, cut);
  const bool drafted = step < sequence.count;
  const Draft* known = drafted ? launch.looked_up(slot_of(launch, sequence, step)) : nullptr;
  const int word = load_draft(known);
  look_at(launch, sequence, step, columns, kept, position);
  if (known != nullptr) {
    Draft* draft = position;
    if (lane_index() < kDraftWords) reinterpret_cast<int*>(draft)[lane_index()] = word;
    __syncwarp(kAllLanes);
  } else if (drafted) {
    look_up<D>(
        launch, sequence, step, draft_chunks, cut, [&](int token) { return columns.logit(token); },
        position);
  }
  judge(sequence, step, drafted ? columns.z(position->logit) : 0.0f, position);
}

}  // namespace rdk
