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

// Where a row has been cut.
template <typename J>
RDK_DEVICE Cut cut_of(const J& judge, int step, const RowLimits<Cut>& limits) {
  if (!limits.any()) return Cut::nothing();
  return limits.at(global_load(&judge.launch.thresholds[judge.slot(step)]));
}

// By one warp: all of a position but the verdict.
template <typename J>
RDK_DEVICE void describe(const J& judge, int step, const Cut& cut, Position* position) {
  const auto columns = judge.target_row(step, cut);
  judge.look_at(step, columns, position);
  if (step < judge.sequence.count) judge.look_up_in(columns, step, position);
}

// By one warp: p and q at the draft of a step, or that the draft ends here.
template <typename J>
RDK_DEVICE void weigh(const J& judge, int step, const Cut& cut, Position* position) {
  describe(judge, step, cut, position);
  const bool judged = position->target.valid && position->kind != DraftKind::kUnusable;
  float p = 0.0f;
  float q = position->q;
  if (judged) {
    if (judge.sequence.target_temperature == 0.0f) {
      p = q = position->token == position->argmax ? 1.0f : 0.0f;
    } else {
      p = target_p(*position, judge.target_row(step, cut).z(position->logit));
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
template <typename J>
RDK_DEVICE int weigh_prefixes(const J& judge, int first, int last, const RowLimits<Cut>& limits,
                              Position* positions) {
  const auto& sequence = judge.sequence;
  float* factors = judge.launch.factors;
  const int together = limits.any() ? 1 : J::kWarps;
  float factor = 1.0f;
  if (first > first_step(sequence)) {
    factor = global_load(&factors[judge.slot(first)]);
  } else if (threadIdx.x == 0) {
    global_store(&factors[judge.slot(first)], factor);
  }
#pragma unroll 1
  for (int begin = first;; begin = min(begin + together, last + 1)) {
    // Then nothing of the last row is asked for.
    if (begin == sequence.count && given_up(race_words(sequence, begin, 0), factor)) return begin;
    if (begin > last) return -1;
    Cut cut = Cut::nothing();
    if (limits.any()) {
      cut = cut_step(judge, begin, limits);
      if (threadIdx.x == 0) {
        global_store(&judge.launch.thresholds[judge.slot(begin)], cut.threshold);
      }
    }
    const int weighed = min(together, last + 1 - begin);
    if (warp_index() < weighed) {
      weigh(judge, begin + warp_index(), cut, &positions[warp_index()]);
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
        if (threadIdx.x == 0) global_store(&factors[judge.slot(prefix + 1)], factor);
        if (factor == 0.0f) longest = prefix + 1;
      }
    }
    __syncthreads();
    if (longest >= 0) return longest;
  }
}

// By the block, after all tries have been in vain; its first warp knows the outcome.
template <typename J>
RDK_DEVICE int race_directly(const Residual<J>& residual, const PhiloxWords& words) {
  residual.sum();
  if (warp_index() != 0) return kUndecided;
  const float total = residual.total();
  if (residual.factor < 1.0f) {
    const double accepted = total;
    const double decided = accepted + (1.0 - static_cast<double>(residual.factor));
    if (!(uniform(words.word[3]) * decided < accepted)) return kGivenUp;
  }
  const int token = residual.draw(words, total);
  return token >= 0 ? token : residual.position.target.draw(residual.columns, words);
}

// By the block: the token behind a prefix, kNoToken or kGivenUp, the same in all threads. Each warp
// makes one try, and the lowest that decides anything counts. Behind the longest prefix nothing is
// drafted: q is 0, and the first try decides.
template <typename J>
RDK_DEVICE int race(const J& judge, int prefix, const RowLimits<Cut>& limits, Position* position,
                    int* decided) {
  const auto& sequence = judge.sequence;
  const int warp = warp_index();
  const float factor = global_load(&judge.launch.factors[judge.slot(prefix)]);
  if (given_up(race_words(sequence, prefix, 0), factor)) return kGivenUp;
  const Cut cut = cut_of(judge, prefix, limits);
  if (warp == 0) describe(judge, prefix, cut, position);
  __syncthreads();
  if (!position->target.valid) return kNoToken;
  if (sequence.target_temperature == 0.0f) return position->argmax;
  const auto columns = judge.target_row(prefix, cut);
#pragma unroll 1
  for (int first = 0;; first += J::kWarps) {
    const bool directly = first == kResidualTries;
    const PhiloxWords words = race_words(sequence, prefix, directly ? first : first + warp);
    int found = kUndecided;
    if (directly) {
      found = race_directly(Residual<J>{judge, *position, columns, factor}, words);
    } else if (given_up(words, factor)) {
      found = kGivenUp;
    } else {
      const int token = position->target.draw(columns, words);
      // Of no drafted row there may be no affinity: a tree of fixed nodes has none.
      const Entries entries = position->kind == DraftKind::kRow
                                  ? column_entries(judge.launch.params.affinity, token)
                                  : Entries{0, 0};
      const float p = factor * target_p(*position, columns.value(token));
      const float q = judge.q(*position, token, entries);
      if (uniform(words.word[2]) * p < p - q) found = token;
    }
    if (lane_index() == 0) decided[warp] = found;
    __syncthreads();
    int outcome = kUndecided;
#pragma unroll 1
    for (int other = 0; other < J::kWarps && outcome == kUndecided; ++other) {
      outcome = decided[other];
    }
    __syncthreads();
    if (outcome != kUndecided) return outcome;
  }
}

// Of all tokens that are put out: `prefix` drafts, and the token behind them if there is one.
template <typename J>
RDK_DEVICE void write_logprobs(const J& judge, int prefix, int token, const RowLimits<Cut>& limits,
                               Position* position) {
  if (judge.launch.params.logprobs_of == Logprobs::kNone) return;
#pragma unroll 1
  for (int step = token >= 0 ? prefix : prefix - 1; step >= 0; --step) {
    const Cut cut = cut_of(judge, step, limits);
    __syncthreads();
    if (warp_index() == 0) describe(judge, step, cut, position);
    if (threadIdx.x == 0) position->verdict = Verdict::kAccepted;
    __syncthreads();
    const int put = step == prefix ? token : static_cast<int>(position->token);
    write_logprob(judge, step, *position, put, cut);
  }
}

// By the block: the longest prefix that is accepted, at most this one, and what race() says of it.
template <typename J>
RDK_DEVICE int accept_prefix(const J& judge, int longest, const RowLimits<Cut>& limits,
                             Position* position, int* decided, int* token) {
#pragma unroll 1
  for (int prefix = longest;; --prefix) {
    *token = race(judge, prefix, limits, position, decided);
    if (*token != kGivenUp) return prefix;
  }
}

// The same as decide_within, by block.
template <typename J>
RDK_DEVICE bool decide_by_block(const J& judge, int first, int last, const RowLimits<Cut>& limits,
                                Position* positions) {
  __shared__ int decided[J::kWarps];
  const VerifyParams& params = judge.launch.params;
  const int longest = weigh_prefixes(judge, first, last, limits, positions);
  if (longest < 0) return false;
  int token;
  const int prefix = accept_prefix(judge, longest, limits, positions, decided, &token);
  int64_t* tokens = params.tokens + judge.sequence.index * (params.max_draft + 1);
#pragma unroll 1
  for (int step = threadIdx.x; step < prefix; step += VerifyLaunch::kThreads) {
    tokens[step] = params.drafts.token_ids[token_of(judge.sequence, step)];
  }
  if (threadIdx.x == 0) {
    params.num_accepted[judge.sequence.index] = prefix;
    if (token >= 0) tokens[prefix] = token;
  }
  write_logprobs(judge, prefix, token, limits, positions);
  return true;
}

}  // namespace rdk
