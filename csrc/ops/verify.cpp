#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

namespace {

// The arguments that follow of the sequences alone: limits, what is asked for, and the results.
std::tuple<Tensor, Tensor, Tensor> decide(const Checks& checks, Given target_logits,
                                          Given target_temperature, Given step_keys,
                                          Given positions, Maybe top_k, Maybe top_p, Maybe min_p,
                                          int64_t logprobs, int64_t method,
                                          const char* per_sequence, VerifyParams* params) {
  const Shape sequences = {params->sequences.count};
  take_sequences(checks, "target_temperature", target_temperature, step_keys, positions,
                 per_sequence, &params->sequences);
  params->sequences.truncation = truncation(checks, params->affinity.target_size, sequences,
                                            per_sequence, top_k, top_p, min_p);
  if (logprobs < 0 || logprobs > 2) {
    checks.refuse("logprobs", "is " + std::to_string(logprobs),
                  "0 for none, 1 for those of the processed distribution or 2 for those of the raw "
                  "logits");
  }
  params->logprobs_of = static_cast<Logprobs>(logprobs);
  params->method = verification_method(checks, method);
  const Shape wide = sequences.followed_by(params->max_draft + 1);
  const Tensor tokens = output(target_logits, wide, &params->tokens);
  const Tensor num_accepted = output(target_logits, sequences, &params->num_accepted);
  const Tensor token_logprobs =
      output(target_logits, logprobs == 0 ? Shape{0} : wide, &params->logprobs);
  run(*params, target_logits);
  return {tokens, num_accepted, token_logprobs};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> verify(
    Given target_logits, Given draft_logits, Maybe draft_stats, Maybe draft_rows,
    Given draft_token_ids, Given draft_offsets, Given target_temperature, Given draft_temperature,
    Given step_keys, Given positions, Maybe bias, Given col_offsets, Given col_drafts,
    Given col_weights, Given spread, Given prior, int64_t max_draft, Maybe dynamic_tokens,
    Maybe dynamic_logits, Maybe top_k, Maybe top_p, Maybe min_p, Maybe allowed, int64_t logprobs,
    int64_t method) {
  const Checks checks("verify", "target_logits", target_logits);
  VerifyParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  params.max_draft = longest(checks, "max_draft", max_draft);
  take_packed(checks, "draft_token_ids", draft_token_ids, "draft_offsets", draft_offsets,
              &params.drafts, &params.sequences.count);
  constexpr const char* kPerSequence = "[B], one for each sequence of draft_offsets";
  checks.dimensions("draft_logits", draft_logits, 2, "[M, V_d]");
  take_drafter(checks, draft_logits, draft_stats, draft_rows, draft_temperature, bias, col_offsets,
               col_drafts, col_weights, spread, prior, dynamic_tokens, dynamic_logits, kPerSequence,
               "[N], one for each of draft_token_ids", &params);
  take_target(checks, target_logits, allowed, &params);
  return decide(checks, target_logits, target_temperature, step_keys, positions, top_k, top_p,
                min_p, logprobs, method, kPerSequence, &params);
}

std::tuple<Tensor, Tensor, Tensor> verify_step(
    Given target_logits, Given draft_logits, Given draft_stats, Given draft_token_ids,
    Given target_temperature, Given draft_temperature, Given step_keys, Given positions, Maybe bias,
    Given col_offsets, Given col_drafts, Given col_weights, Given spread, Given prior,
    Maybe dynamic_tokens, Maybe dynamic_logits, Maybe top_k, Maybe top_p, Maybe min_p,
    Maybe allowed, int64_t logprobs, int64_t method) {
  const Checks checks("verify_step", "target_logits", target_logits);
  VerifyParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  checks.dimensions("target_logits", target_logits, 3, "[B, J + 1, V_t]");
  const int64_t sequences = target_logits.size(0);
  const int64_t rows = target_logits.size(1);  // J + 1
  checks.dimensions("draft_logits", draft_logits, 3, "[B, K, V_d]");
  const int64_t places = draft_logits.size(1);
  if (rows < 1 || rows > places + 1) {
    checks.refuse("target_logits", "has shape " + describe(shape_of(target_logits)),
                  "[B, J + 1, V_t], a row for each of J drafts, at most K = " +
                      std::to_string(places) + ", and the one after them");
  }
  checks.shape("draft_logits", draft_logits, {sequences, places, draft_logits.size(2)},
               "[B, K, V_d], B as in target_logits");
  checks.device("draft_token_ids", draft_token_ids);
  checks.dtype("draft_token_ids", draft_token_ids, {ScalarType::Long, ScalarType::Int});
  checks.shape("draft_token_ids", draft_token_ids, {sequences, rows - 1},
               "[B, J], B and J as in target_logits");
  params.sequences.count = sequences;
  params.max_draft = rows - 1;
  params.drafts = {token_ids(draft_token_ids),
                   sequences * params.max_draft,
                   nullptr,
                   params.max_draft,
                   checks.even_rows("draft_token_ids", draft_token_ids).inner_stride,
                   places};
  constexpr const char* kPerSequence = "[B], one for each sequence of target_logits";
  take_drafter(checks, draft_logits, draft_stats, std::nullopt, draft_temperature, bias,
               col_offsets, col_drafts, col_weights, spread, prior, dynamic_tokens, dynamic_logits,
               kPerSequence, "", &params);
  params.target.size = params.affinity.target_size;
  checks.shape("target_logits", target_logits, {sequences, rows, params.target.size},
               "[B, J + 1, V_t], V_t as in col_offsets");
  params.target.logits = checks.even_rows("target_logits", target_logits);
  if (allowed) {
    checks.device("allowed", *allowed);
    checks.dtype("allowed", *allowed, {ScalarType::Int});
    checks.shape("allowed", *allowed, {sequences, rows, (params.target.size + 31) / 32},
                 "[B, J + 1, ceil(V_t / 32)], one bit for each token");
    params.target.allowed = checks.even_rows("allowed", *allowed);
  }
  return decide(checks, target_logits, target_temperature, step_keys, positions, top_k, top_p,
                min_p, logprobs, method, kPerSequence, &params);
}

}  // namespace rdk::ops

RDK_REGISTER(verify,
             "verify(Tensor target_logits, Tensor draft_logits, Tensor? draft_stats, "
             "Tensor? draft_rows, Tensor draft_token_ids, Tensor draft_offsets, "
             "Tensor target_temperature, Tensor draft_temperature, Tensor step_keys, "
             "Tensor positions, " RDK_COLUMNS ", SymInt max_draft, " RDK_DYNAMIC ", " RDK_LIMITS
             ", Tensor? allowed=None, int logprobs=0, int method=0) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor logprobs)")
RDK_REGISTER(verify_step,
             "verify_step(Tensor target_logits, Tensor draft_logits, Tensor draft_stats, "
             "Tensor draft_token_ids, Tensor target_temperature, Tensor draft_temperature, "
             "Tensor step_keys, Tensor positions, " RDK_COLUMNS ", " RDK_DYNAMIC ", " RDK_LIMITS
             ", Tensor? allowed=None, int logprobs=0, int method=0) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor logprobs)")
