// verify by token: what follows the drafts that are accepted (DESIGN section 2, "Verification").
#pragma once

#include "verify_residual.cuh"

namespace rdk {

// After all proposals have failed: a token from max(p - q, 0), which the whole block sums and its
// first warp draws from. The other warps return -1, and so do all of them if there is no mass (p =
// q up to rounding).
template <typename T, typename D, typename C, typename L, typename S>
RDK_DEVICE int draw_residual_directly(const L& launch, const S& sequence, const Position& position,
                                      const TargetColumns<T, C>& columns, const PhiloxWords& words,
                                      unsigned char* shared) {
  const Residual<T, D, C, L, S> residual{launch, sequence, position, columns, 1.0f};
  residual.sum(shared);
  return warp_index() == 0 ? residual.draw(words, residual.total()) : -1;
}

// The token that follows the accepted ones; the first warp returns it. A bonus is one draw from p.
// For a rejected draft each warp makes one proposal from p, with the random numbers of its own try,
// and the lowest try that is kept wins: the same token as if the tries had been made one by one.
// kDirectPass, in all warps, where direct passes are shared and it takes one.
constexpr int kDirectPass = -2;
template <typename T, typename D, typename C, typename L, typename S>
RDK_DEVICE int last_token(const L& launch, const S& sequence, int step, const Position& position,
                          const C& cut, unsigned char* shared) {
  constexpr int kWarps = L::kThreads / kWarp;
  __shared__ int kept[kWarps];
  if (position.verdict == Verdict::kStopped) return -1;
  if (sequence.target_temperature == 0.0f) return position.argmax;
  const TargetColumns<T, C> columns = target_row<T>(launch.params, sequence, step, cut);
  const int64_t place = later(sequence.position, step);
  Purpose purpose = position.verdict == Verdict::kBonus ? Purpose::kBonus : Purpose::kResidual;
  const int warp = warp_index();
#pragma unroll 1
  for (int first = 0;; first += kWarps) {
    if (purpose == Purpose::kResidual && first == kResidualTries) {
      if constexpr (L::kSharesPasses) return kDirectPass;
      purpose = Purpose::kDirect;
      const int token =
          draw_residual_directly<T, D>(launch, sequence, position, columns,
                                       random_words(sequence.step_key, place, purpose, 0), shared);
      if (token >= 0) return token;
    }
    const bool proposes = purpose == Purpose::kResidual;
    const PhiloxWords words =
        random_words(sequence.step_key, place, purpose, proposes ? first + warp : 0);
    const int token = position.target.draw(columns, words);
    if (!proposes) return token;
    const Entries entries = column_entries(launch.params.affinity, token);
    const float p = target_p(position, columns.value(token));
    const float q = draft_q<D>(launch.params, sequence, position, token, entries, cut);
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
