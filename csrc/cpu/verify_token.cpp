// verify by token. Memory floor: the target logits up to the first rejection, once.

#include "verify_methods.h"
#include "verify_residual.h"

namespace rdk::cpu {

int64_t first_kept(const VerifyStep& step, int64_t j, const TargetDistribution& target,
                   const DraftDistribution& draft) {
  for (int attempt = 0; attempt < kResidualTries; ++attempt) {
    const PhiloxWords words = step.words(j, Purpose::kResidual, attempt);
    const int64_t token = target.draw(words);
    if (token < 0) continue;
    const float p = target.p(token);
    if (uniform(words.word[2]) * p < p - draft.q(token)) return kept_at(attempt, token);
  }
  return kNotHere;
}

bool accepts(const VerifyStep& step, int64_t j, const TargetDistribution& target,
             const DraftDistribution& draft) {
  if (!draft.usable()) return false;
  const int64_t token = step.token(j);
  if (target.greedy()) return token == target.argmax();
  const float coin = uniform(step.words(j, Purpose::kAccept, 0).word[0]);
  return coin * draft.q(token) < target.p(token);
}

Decided verify_by_token(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output) {
  const auto target_of = [&](int64_t j) { return step.target(j, threads, &scratch->target); };
  const auto follow = [&](int64_t j, const TargetDistribution& target,
                          const DraftDistribution* draft) -> int64_t {
    if (!target.valid()) return -1;
    if (target.greedy()) return target.argmax();
    if (draft == nullptr) return target.draw(step.words(j, Purpose::kBonus, 0));
    const int64_t kept = first_kept(step, j, target, *draft);
    if (kept != kNotHere) return token_of(kept, step.params().affinity.target_size);
    return Residual(target, *draft, 1.0f, threads).draw(step.words(j, Purpose::kDirect, 0));
  };
  return judge_in_order(step, threads, scratch, output, target_of, follow);
}

}  // namespace rdk::cpu
