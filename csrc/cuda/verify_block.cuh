// verify by block: the drafts of a sequence are judged together, by a block that has the sums of
// their rows (DESIGN section 2, "Block verification", and section 4, "Verify by blocks").
#pragma once

#include "verify_limits.cuh"
#include "verify_residual.cuh"

namespace rdk {

// In the place of a kernel's rows, which may be cut: it verifies by block.
struct Block {
  using Rows = Cut;
  static constexpr bool kByBlock = true;
};

// What a prefix's race decides where it gives no token.
constexpr int kUndecided = -1;
constexpr int kGivenUp = -2;
constexpr int kNoToken = -3;  // the prefix is accepted, but its row has no distribution

template <typename S>
RDK_DEVICE PhiloxWords race_words(const S& sequence, int prefix, int attempt) {
  return random_words(sequence.step_key, later(sequence.position, prefix), Purpose::kBlock, attempt,
                      nesting_of(sequence));
}

RDK_DEVICE bool given_up(const PhiloxWords& words, float factor) {
  return !(uniform(words.word[3]) < factor);
}

RDK_DEVICE float next_factor(float mass, float q) {
  if (mass == 0.0f) return 0.0f;
  return mass >= q ? 1.0f : mass / q;
}

// Where a row has been cut.
template <typename L, typename S>
RDK_DEVICE Cut cut_of(const L& launch, const S& sequence, int step, const RowLimits<Cut>& limits) {
  if (!limits.any()) return Cut::nothing();
  return limits.at(global_load(&launch.thresholds[slot_of(launch, sequence, step)]));
}

// By one warp: all of a position but the verdict.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE void describe(const L& launch, const S& sequence, int step, int draft_chunks,
                         const Cut& cut, unsigned char* shared, Position* position) {
  const TargetColumns<T, Cut> columns = target_row<T>(launch.params, sequence, step, cut);
  auto* kept = reinterpret_cast<ChunkSum*>(ring_of_warp(shared));
  look_at(launch, sequence, step, columns, kept, position);
  if (step >= sequence.count) return;
  look_up<D>(
      launch, sequence, step, draft_chunks, cut, [&](int token) { return columns.logit(token); },
      position);
}

// By one warp: p and q at the draft of a step, or that the draft ends here.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE void weigh(const L& launch, const S& sequence, int step, int draft_chunks,
                      const Cut& cut, unsigned char* shared, Position* position) {
  describe<T, D>(launch, sequence, step, draft_chunks, cut, shared, position);
  const bool judged = position->target.valid && position->kind != DraftKind::kUnusable;
  float p = 0.0f;
  float q = position->q;
  if (judged) {
    if (sequence.target_temperature == 0.0f) {
      p = q = position->token == position->argmax ? 1.0f : 0.0f;
    } else {
      p = target_p(*position, target_row<T>(launch.params, sequence, step, cut).z(position->logit));
    }
  }
  __syncwarp(kAllLanes);
  if (lane_index() == 0) {
    position->verdict = judged ? Verdict::kAccepted : Verdict::kStopped;
    position->p = p;
    position->q = q;
  }
}

// By the block, from the sums of the rows [first, last]: the factors of the prefixes that end
// there, and where rows are cut. Returns the longest prefix, or -1 where the rows behind decide
// about it. Rows that are cut are taken one after the other, others with a warp for each.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE int weigh_prefixes(const L& launch, const S& sequence, int first, int last,
                              int draft_chunks, const RowLimits<Cut>& limits, unsigned char* shared,
                              Position* positions) {
  const int together = limits.any() ? 1 : L::kThreads / kWarp;
  float factor = 1.0f;
  if (first > first_step(sequence)) {
    factor = global_load(&launch.factors[slot_of(launch, sequence, first)]);
  } else if (threadIdx.x == 0) {
    global_store(&launch.factors[slot_of(launch, sequence, first)], factor);
  }
#pragma unroll 1
  for (int begin = first;; begin = min(begin + together, last + 1)) {
    // Then nothing of the last row is asked for.
    if (begin == sequence.count && given_up(race_words(sequence, begin, 0), factor)) return begin;
    if (begin > last) return -1;
    Cut cut = Cut::nothing();
    if (limits.any()) {
      cut = cut_step<T>(launch, sequence, begin, limits, shared);
      if (threadIdx.x == 0) {
        global_store(&launch.thresholds[slot_of(launch, sequence, begin)], cut.threshold);
      }
    }
    const int weighed = min(together, last + 1 - begin);
    if (warp_index() < weighed) {
      weigh<T, D>(launch, sequence, begin + warp_index(), draft_chunks, cut, shared,
                  &positions[warp_index()]);
    }
    __syncthreads();
    int longest = -1;
#pragma unroll 1
    for (int i = 0; i < weighed && longest < 0; ++i) {
      const int prefix = begin + i;
      if (positions[i].verdict == Verdict::kStopped) {
        longest = prefix;
      } else {
        factor = next_factor(factor * positions[i].p, positions[i].q);
        if (threadIdx.x == 0) {
          global_store(&launch.factors[slot_of(launch, sequence, prefix + 1)], factor);
        }
        if (factor == 0.0f) longest = prefix + 1;
      }
    }
    __syncthreads();
    if (longest >= 0) return longest;
  }
}

// By the block, after all tries have been in vain; its first warp knows the outcome.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE int race_directly(const L& launch, const S& sequence, const Position& position,
                             const TargetColumns<T, Cut>& columns, float factor,
                             const PhiloxWords& words, unsigned char* shared) {
  const Residual<T, D, Cut, L, S> residual{launch, sequence, position, columns, factor};
  residual.sum(shared);
  if (warp_index() != 0) return kUndecided;
  const float total = residual.total();
  if (factor < 1.0f) {
    const double accepted = total;
    const double decided = accepted + (1.0 - static_cast<double>(factor));
    if (!(uniform(words.word[3]) * decided < accepted)) return kGivenUp;
  }
  const int token = residual.draw(words, total);
  return token >= 0 ? token : position.target.draw(columns, words);
}

// By the block: the token behind a prefix, kNoToken or kGivenUp, the same in all threads. Each warp
// makes one try, and the lowest that decides anything counts. Behind the longest prefix nothing is
// drafted: q is 0, and the first try decides.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE int race(const L& launch, const S& sequence, int prefix, int draft_chunks,
                    const RowLimits<Cut>& limits, unsigned char* shared, Position* position,
                    int* decided) {
  constexpr int kWarps = L::kThreads / kWarp;
  const int warp = warp_index();
  const float factor = global_load(&launch.factors[slot_of(launch, sequence, prefix)]);
  if (given_up(race_words(sequence, prefix, 0), factor)) return kGivenUp;
  const Cut cut = cut_of(launch, sequence, prefix, limits);
  if (warp == 0) describe<T, D>(launch, sequence, prefix, draft_chunks, cut, shared, position);
  __syncthreads();
  if (!position->target.valid) return kNoToken;
  if (sequence.target_temperature == 0.0f) return position->argmax;
  const TargetColumns<T, Cut> columns = target_row<T>(launch.params, sequence, prefix, cut);
#pragma unroll 1
  for (int first = 0;; first += kWarps) {
    const bool directly = first == kResidualTries;
    const PhiloxWords words = race_words(sequence, prefix, directly ? first : first + warp);
    int found = kUndecided;
    if (directly) {
      found = race_directly<T, D>(launch, sequence, *position, columns, factor, words, shared);
    } else if (given_up(words, factor)) {
      found = kGivenUp;
    } else {
      const int token = position->target.draw(columns, words);
      // Of no drafted row there may be no affinity: a tree of fixed nodes has none.
      const Entries entries = position->kind == DraftKind::kRow
                                  ? column_entries(launch.params.affinity, token)
                                  : Entries{0, 0};
      const float p = factor * target_p(*position, columns.value(token));
      const float q = draft_q<D>(launch.params, sequence, *position, token, entries, cut);
      if (uniform(words.word[2]) * p < p - q) found = token;
    }
    if (lane_index() == 0) decided[warp] = found;
    __syncthreads();
    int outcome = kUndecided;
#pragma unroll 1
    for (int other = 0; other < kWarps && outcome == kUndecided; ++other) outcome = decided[other];
    __syncthreads();
    if (outcome != kUndecided) return outcome;
  }
}

// Of all tokens that are put out: `prefix` drafts, and the token behind them if there is one.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE void write_logprobs(const L& launch, const S& sequence, int prefix, int token,
                               int draft_chunks, const RowLimits<Cut>& limits,
                               unsigned char* shared, Position* position) {
  if (launch.params.logprobs_of == Logprobs::kNone) return;
#pragma unroll 1
  for (int step = token >= 0 ? prefix : prefix - 1; step >= 0; --step) {
    const Cut cut = cut_of(launch, sequence, step, limits);
    __syncthreads();
    if (warp_index() == 0)
      describe<T, D>(launch, sequence, step, draft_chunks, cut, shared, position);
    if (threadIdx.x == 0) position->verdict = Verdict::kAccepted;
    __syncthreads();
    const int put = step == prefix ? token : static_cast<int>(position->token);
    write_logprob<T>(launch, sequence, step, *position, put, cut);
  }
}

// By the block: the longest prefix that is accepted, at most this one, and what race() says of it.
template <typename T, typename D, typename L, typename S>
RDK_DEVICE int accept_prefix(const L& launch, const S& sequence, int longest, int draft_chunks,
                             const RowLimits<Cut>& limits, unsigned char* shared,
                             Position* position, int* decided, int* token) {
#pragma unroll 1
  for (int prefix = longest;; --prefix) {
    *token = race<T, D>(launch, sequence, prefix, draft_chunks, limits, shared, position, decided);
    if (*token != kGivenUp) return prefix;
  }
}

// The same as decide_within, by block.
template <typename T, typename D>
RDK_DEVICE bool decide_by_block(const VerifyLaunch& launch, const Sequence& sequence, int first,
                                int last, int draft_chunks, const RowLimits<Cut>& limits,
                                unsigned char* shared, Position* positions) {
  __shared__ int decided[VerifyLaunch::kThreads / kWarp];
  const VerifyParams& params = launch.params;
  const int longest =
      weigh_prefixes<T, D>(launch, sequence, first, last, draft_chunks, limits, shared, positions);
  if (longest < 0) return false;
  int token;
  const int prefix = accept_prefix<T, D>(launch, sequence, longest, draft_chunks, limits, shared,
                                         positions, decided, &token);
  int64_t* tokens = params.tokens + sequence.index * (params.max_draft + 1);
#pragma unroll 1
  for (int step = threadIdx.x; step < prefix; step += VerifyLaunch::kThreads) {
    tokens[step] = params.drafts.token_ids[token_of(sequence, step)];
  }
  if (threadIdx.x == 0) {
    params.num_accepted[sequence.index] = prefix;
    if (token >= 0) tokens[prefix] = token;
  }
  write_logprobs<T, D>(launch, sequence, prefix, token, draft_chunks, limits, shared, positions);
  return true;
}

}  // namespace rdk
