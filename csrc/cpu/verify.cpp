// verify: positions in order up to the first rejection. q is evaluated at the drafted token only,
// and the residual max(p - q, 0) is drawn by proposals from p (DESIGN, "Three ideas"). Memory
// floor: the target logits up to the first rejection, once.

#include <algorithm>

#include "operators.h"
#include "verify_rows.h"

namespace rdk::cpu {
namespace {

// After all proposals have failed: draws from max(p - q, 0), summed over all tokens, or from p if
// that has no mass (p = q up to rounding).
int64_t draw_residual_directly(const TargetDistribution& target, const DraftDistribution& draft,
                               const Threads& threads, const PhiloxWords& words) {
  RedistributedRow redistributed;
  draft.prepare(threads, &redistributed);
  const auto evaluate = [&](int64_t chunk, float* residual) {
    const int64_t begin = chunk * kChunk;
    alignas(64) float q[kChunk] = {};
    target.evaluate(chunk, residual);
    draft.evaluate(redistributed, begin, begin + target.count(chunk), q);
    return arithmetic().residual(residual, q, target.count(chunk));
  };
  std::vector<float> sums(target.chunks());
  share(threads, target.chunks(), [&](Units& units) {
    alignas(64) float residual[kChunk];
    for (int64_t chunk; units.claim(&chunk);) sums[chunk] = evaluate(chunk, residual);
  });
  const int64_t chunk =
      draw_index(target.chunks(), uniform(words.word[0]), [&](int64_t c) { return sums[c]; });
  if (chunk < 0) return target.draw(words);
  alignas(64) float residual[kChunk];
  evaluate(chunk, residual);
  return chunk * kChunk + draw_index(target.count(chunk), uniform(words.word[1]),
                                     [&](int64_t i) { return residual[i]; });
}

int64_t draw_residual(const TargetDistribution& target, const DraftDistribution& draft,
                      const Threads& threads, int64_t step_key, int64_t position) {
  if (target.greedy()) return target.argmax();
  for (int attempt = 0; attempt < kResidualTries; ++attempt) {
    const PhiloxWords words = random_words(step_key, position, Purpose::kResidual, attempt);
    const int64_t token = target.draw(words);
    const float p = target.p(token);
    if (uniform(words.word[2]) * p < p - draft.q(token)) return token;
  }
  return draw_residual_directly(target, draft, threads,
                                random_words(step_key, position, Purpose::kDirect, 0));
}

bool accepts(const TargetDistribution& target, const DraftDistribution& draft, int64_t token,
             int64_t step_key, int64_t position) {
  if (!draft.usable()) return false;
  if (target.greedy()) return token == target.argmax();
  const float coin = uniform(random_words(step_key, position, Purpose::kAccept, 0).word[0]);
  return coin * draft.q(token) < target.p(token);
}

int64_t drafted_token(const VerifyParams& params, int64_t draft) {
  return params.tokens_are_int64 ? static_cast<const int64_t*>(params.draft_token_ids)[draft]
                                 : static_cast<const int32_t*>(params.draft_token_ids)[draft];
}

// Reused from one sequence to the next, for their memory.
struct Scratch {
  Softmax target;
  Softmax draft;
  Softmax raw;
};

// Of the raw logits at temperature 1; NaN where they have no distribution.
float raw_log_probability(const VerifyParams& params, int64_t row, int64_t token,
                          const Threads& threads, Softmax* softmax) {
  const TargetRow raw(target_rows(params), row, 1.0f, false);
  summarize(raw, threads, softmax);
  return softmax->valid ? log_probability(raw.value(token), *softmax)
                        : std::numeric_limits<float>::quiet_NaN();
}

void verify_sequence(const VerifyParams& params, int64_t sequence, const Threads& threads,
                     Scratch* scratch) {
  const int64_t width = params.max_draft + 1;
  int64_t* tokens = params.tokens + sequence * width;
  int32_t* num_accepted = params.num_accepted + sequence;
  std::fill(tokens, tokens + width, -1);
  *num_accepted = 0;
  const bool with_logprobs = params.logprobs_of != Logprobs::kNone;
  if (with_logprobs) std::fill_n(params.logprobs + sequence * width, width, -kInfinity);

  const Owned drafts = owned(params.draft_offsets, sequence, params.num_drafts);
  const int64_t count = std::min(drafts.count, params.max_draft);
  const int64_t step_key = params.step_keys[sequence];
  const RowLimits limits(params.truncation, sequence);
  const TargetRows rows = target_rows(params);
  for (int64_t step = 0; step <= count; ++step) {
    const int64_t position = later(params.positions[sequence], step);
    const int64_t row = drafts.start + sequence + step;
    const TargetDistribution target(rows, row, params.target_temperature[sequence], limits, threads,
                                    &scratch->target, &threshold_of_thread());
    if (!target.valid()) return;
    const auto put = [&](int64_t token) {
      tokens[step] = token;
      if (!with_logprobs) return;
      const bool processed = params.logprobs_of == Logprobs::kProcessed || target.raw();
      params.logprobs[sequence * width + step] =
          processed ? target.log_p(token)
                    : raw_log_probability(params, row, token, threads, &scratch->raw);
    };
    const int64_t token = step < count ? drafted_token(params, drafts.start + step) : -1;
    if (token == -1) {
      put(target.draw(random_words(step_key, position, Purpose::kBonus, 0)));
      return;
    }
    const DraftDistribution draft(params, sequence, drafts.start + step, token, threads,
                                  &scratch->draft);
    if (!accepts(target, draft, token, step_key, position)) {
      put(draw_residual(target, draft, threads, step_key, position));
      return;
    }
    put(token);
    ++*num_accepted;
  }
}

}  // namespace

void verify(const VerifyParams& params, const Threads& threads) {
  for_each_row<Scratch>(threads, params.sequences, params.affinity.target_size,
                        [&](int64_t sequence, const Threads& for_sequence, Scratch* scratch) {
                          verify_sequence(params, sequence, for_sequence, scratch);
                        });
}

}  // namespace rdk::cpu
