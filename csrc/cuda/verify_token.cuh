// verify by token: whether a draft is accepted, and what follows those that are (DESIGN section 2,
// "Verification").
#pragma once

#include "verify_residual.cuh"

namespace rdk {

// By one warp, of a position that is known but for this. z is that of the target at the draft.
template <typename S>
RDK_DEVICE void accept_or_reject(const S& sequence, int step, float z, Position* position) {
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

// By one warp, which leaves all results in `position`.
template <typename J, typename C>
RDK_DEVICE void decide(const J& judge, int step, const C& cut, Position* position) {
  const auto columns = judge.target_row(step, cut);
  const bool drafted = step < judge.sequence.count;
  const Draft* known = drafted ? judge.launch.looked_up(judge.slot(step)) : nullptr;
  const int word = load_draft(known);
  judge.look_at(step, columns, position);
  if (known != nullptr) {
    Draft* draft = position;
    if (lane_index() < kDraftWords) reinterpret_cast<int*>(draft)[lane_index()] = word;
    __syncwarp(kAllLanes);
  } else if (drafted) {
    judge.look_up_in(columns, step, position);
  }
  accept_or_reject(judge.sequence, step, drafted ? columns.z(position->logit) : 0.0f, position);
}

// The token that follows the accepted ones; the first warp returns it. A bonus is one draw from p.
// For a rejected draft each warp makes one proposal from p, with the random numbers of its own try,
// and the lowest try that is kept wins: the same token as if the tries had been made one by one.
// kDirectPass, in all warps, where direct passes are shared and it takes one.
constexpr int kDirectPass = -2;
template <typename J, typename C>
RDK_DEVICE int last_token(const J& judge, int step, const Position& position, const C& cut) {
  constexpr int kWarps = J::kWarps;
  __shared__ int kept[kWarps];
  const auto& sequence = judge.sequence;
  if (position.verdict == Verdict::kStopped) return -1;
  if (sequence.target_temperature == 0.0f) return position.argmax;
  const auto columns = judge.target_row(step, cut);
  const int64_t place = later(sequence.position, step);
  Purpose purpose = position.verdict == Verdict::kBonus ? Purpose::kBonus : Purpose::kResidual;
  const int warp = warp_index();
#pragma unroll 1
  for (int first = 0;; first += kWarps) {
    if (purpose == Purpose::kResidual && first == kResidualTries) {
      if constexpr (J::Launch::kSharesPasses) return kDirectPass;
      // max(p - q, 0), which the whole block sums and its first warp draws from. If there is no
      // mass (p = q up to rounding), p is drawn from.
      purpose = Purpose::kDirect;
      const Residual<J> residual{judge, position, columns, 1.0f};
      residual.sum();
      const PhiloxWords words = random_words(sequence.step_key, place, purpose, 0);
      const int token = warp == 0 ? residual.draw(words, residual.total()) : -1;
      if (token >= 0) return token;
    }
    const bool proposes = purpose == Purpose::kResidual;
    const PhiloxWords words =
        random_words(sequence.step_key, place, purpose, proposes ? first + warp : 0);
    const int token = position.target.draw(columns, words);
    if (!proposes) return token;
    const Entries entries = column_entries(judge.launch.params.affinity, token);
    const float p = target_p(position, columns.value(token));
    const float q = judge.q(position, token, entries);
    if (lane_index() == 0) {
      kept[warp] = uniform(words.word[2]) * p < p - q ? token : -1;
    }
    __syncthreads();
#pragma unroll 1
    for (int other = 0; other < kWarps; ++other) {
      if (kept[other] >= 0) return kept[other];
    }
    __syncthreads();
  }
}

}  // namespace rdk
