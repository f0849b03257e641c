// How a step's drafts are judged: one by one, or together (DESIGN section 2, "Verification", "Block
// verification"). By token, a whole row and shards of one are judged alike: positions in order up
// to the first rejection, q at the drafted token only, and the residual max(p - q, 0) by proposals
// from p (DESIGN, "Three ideas").
#pragma once

#include "../common/shards.h"
#include "verify_step.h"

namespace rdk::cpu {

struct Decided {
  int64_t accepted;  // the drafts before this one
  int64_t token;     // what follows them; -1: the target's row there has no distribution
};

Decided verify_by_token(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output);

// The longest accepted prefix.
Decided verify_by_block(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output);

inline Decided decide(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                      VerifyOutput* output) {
  const bool by_block = step.params().method == Method::kBlock && !step.greedy();
  return (by_block ? verify_by_block : verify_by_token)(step, threads, scratch, output);
}

// The first try whose proposal is kept, and this, as kept_at has them; kNotHere if there is none.
// Proposals whose chunk is not here are passed over.
int64_t first_kept(const VerifyStep& step, int64_t j, const TargetDistribution& target,
                   const DraftDistribution& draft);

bool accepts(const VerifyStep& step, int64_t j, const TargetDistribution& target,
             const DraftDistribution& draft);

// target_of(j) is p at place j. follow(j, target, draft) is the token behind the accepted ones, -1
// where none is put out; draft is null where the draft has ended.
template <typename TargetOf, typename Follow>
Decided judge_in_order(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                       VerifyOutput* output, const TargetOf& target_of, const Follow& follow) {
  for (int64_t j = step.begin();; ++j) {
    const TargetDistribution target = target_of(j);
    std::optional<DraftDistribution> draft;
    if (target.valid() && step.token(j) != -1) {
      draft.emplace(step.draft(j, threads, &scratch->draft));
      if (accepts(step, j, target, *draft)) {
        output->put(j, step.token(j), target, step.row(j));
        output->accept(j + 1);
        continue;
      }
    }
    const int64_t token = follow(j, target, draft ? &*draft : nullptr);
    if (token != -1) output->put(j, token, target, step.row(j));
    return {j, token};
  }
}

}  // namespace rdk::cpu
