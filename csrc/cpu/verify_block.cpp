#include <optional>
#include <vector>

#include "verify_methods.h"
#include "verify_residual.h"

namespace rdk::cpu {
namespace {

// No token: the prefix is given up.
using Winner = std::optional<int64_t>;

// The prefixes of one step, by the drafts in them: their distributions, and how much of p each
// claims.
class Prefixes {
 public:
  Prefixes(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
           VerifyOutput* output)
      : step_(step), threads_(threads), scratch_(scratch), targets_(step.end() - step.begin() + 1) {
    if (scratch->targets.size() < targets_.size()) scratch->targets.resize(targets_.size());
    for (int64_t i = 0; factors_.back() != 0.0f && step.token(place(i)) != -1; ++i) {
      const DraftDistribution draft = step.draft(place(i), threads, &scratch->draft);
      if (!draft.usable() || !target(i).valid()) break;
      const int64_t token = step.token(place(i));
      factors_.push_back(next_factor(factors_.back() * target(i).p(token), draft.q(token)));
      drafts_.push_back(draft);
      output->put(place(i), token, target(i), step.row(place(i)));
    }
  }

  int64_t last() const { return static_cast<int64_t>(drafts_.size()); }
  int64_t place(int64_t i) const { return step_.begin() + i; }

  // The row behind prefix i, read when it is first asked for. A row that is truncated is read
  // again: where it is cut belongs to the thread.
  const TargetDistribution& target(int64_t i) {
    if (!targets_[i] || (step_.truncated() && newest_ != i)) {
      newest_ = i;
      targets_[i].emplace(step_.target(place(i), threads_, &scratch_->targets[i]));
    }
    return *targets_[i];
  }

  Winner race(int64_t i) {
    for (int attempt = 0; attempt < kResidualTries; ++attempt) {
      const PhiloxWords words = step_.words(place(i), Purpose::kBlock, attempt);
      if (!(uniform(words.word[3]) < factors_[i])) return {};
      if (!target(i).valid()) return -1;
      const int64_t token = target(i).draw(words);
      if (i == last()) return token;
      const float p = factors_[i] * target(i).p(token);
      if (uniform(words.word[2]) * p < p - drafts_[i].q(token)) return token;
    }
    return race_directly(i);
  }

 private:
  Winner race_directly(int64_t i) {
    const Residual residual(target(i), drafts_[i], factors_[i], threads_);
    const PhiloxWords words = step_.words(place(i), Purpose::kBlock, kResidualTries);
    if (factors_[i] < 1.0f) {
      const double accepted = residual.mass();
      const double given_up = 1.0 - static_cast<double>(factors_[i]);
      if (!(uniform(words.word[3]) * (accepted + given_up) < accepted)) return {};
    }
    return residual.draw(words);
  }

  const VerifyStep& step_;
  const Threads& threads_;
  VerifyScratch* scratch_;
  std::vector<std::optional<TargetDistribution>> targets_;
  int64_t newest_ = -1;  // of targets_
  std::vector<DraftDistribution> drafts_;
  std::vector<float> factors_ = {1.0f};
};

}  // namespace

Decided verify_by_block(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output) {
  Prefixes prefixes(step, threads, scratch, output);
  int64_t accepted = prefixes.last();
  Winner winner = prefixes.race(accepted);
  while (!winner) winner = prefixes.race(--accepted);
  const int64_t place = prefixes.place(accepted);
  output->cut(place);
  output->accept(place);
  if (*winner != -1) output->put(place, *winner, prefixes.target(accepted), step.row(place));
  return {place, *winner};
}

}  // namespace rdk::cpu
