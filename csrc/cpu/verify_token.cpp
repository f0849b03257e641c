// verify by token: positions in order up to the first rejection. q is evaluated at the drafted
// token only, and the residual max(p - q, 0) is drawn by proposals from p (DESIGN, "Three ideas").
// Memory floor: the target logits up to the first rejection, once.

#include "verify_methods.h"
#include "verify_residual.h"

namespace rdk::cpu {
namespace {

int64_t draw_residual(const VerifyStep& step, int64_t j, const TargetDistribution& target,
                      const DraftDistribution& draft, const Threads& threads) {
  if (target.greedy()) return target.argmax();
  for (int attempt = 0; attempt < kResidualTries; ++attempt) {
    const PhiloxWords words = step.words(j, Purpose::kResidual, attempt);
    const int64_t token = target.draw(words);
    const float p = target.p(token);
    if (uniform(words.word[2]) * p < p - draft.q(token)) return token;
  }
  return Residual(target, draft, 1.0f, threads).draw(step.words(j, Purpose::kDirect, 0));
}

bool accepts(const VerifyStep& step, int64_t j, const TargetDistribution& target,
             const DraftDistribution& draft) {
  if (!draft.usable()) return false;
  const int64_t token = step.token(j);
  if (target.greedy()) return token == target.argmax();
  const float coin = uniform(step.words(j, Purpose::kAccept, 0).word[0]);
  return coin * draft.q(token) < target.p(token);
}

}  // namespace

Decided verify_by_token(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output) {
  for (int64_t j = step.begin();; ++j) {
    const TargetDistribution target = step.target(j, threads, &scratch->target);
    if (!target.valid()) return {j, -1};
    const int64_t token = step.token(j);
    if (token == -1) {
      const int64_t bonus = target.draw(step.words(j, Purpose::kBonus, 0));
      output->put(j, bonus, target, step.row(j));
      return {j, bonus};
    }
    const DraftDistribution draft = step.draft(j, threads, &scratch->draft);
    if (!accepts(step, j, target, draft)) {
      const int64_t replacement = draw_residual(step, j, target, draft, threads);
      output->put(j, replacement, target, step.row(j));
      return {j, replacement};
    }
    output->put(j, token, target, step.row(j));
    output->accept(j + 1);
  }
}

}  // namespace rdk::cpu
