#include "backend.h"
#include "draft_arguments.h"
#include "registration.h"
#include "target_arguments.h"
#include "truncation_arguments.h"

namespace rdk::ops {

namespace {

// What follows of the sequences alone: limits, what is asked for, and the results.
std::tuple<Tensor, Tensor, Tensor> decide(
    const Checks& checks, const Tensor& target_logits, const Tensor& target_temperature,
    const Tensor& step_keys, const Tensor& positions, const std::optional<Tensor>& top_k,
    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p, int64_t logprobs,
    int64_t method, const char* per_sequence, VerifyParams* params) {
  const Shape sequences = {params->sequences.count};
  checks.plain("target_temperature", target_temperature, ScalarType::Float, sequences,
               per_sequence);
  checks.plain("step_keys", step_keys, ScalarType::Long, sequences, per_sequence);
  checks.plain("positions", positions, ScalarType::Long, sequences, per_sequence);
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
  const Tensor tokens = empty(target_logits, wide, ScalarType::Long);
  const Tensor num_accepted = empty(target_logits, sequences, ScalarType::Int);
  const Tensor token_logprobs =
      empty(target_logits, logprobs == 0 ? Shape{0} : wide, ScalarType::Float);

  params->sequences.temperature = target_temperature.const_data_ptr<float>();
  params->sequences.step_keys = step_keys.const_data_ptr<int64_t>();
  params->sequences.positions = positions.const_data_ptr<int64_t>();
  params->tokens = tokens.mutable_data_ptr<int64_t>();
  params->num_accepted = num_accepted.mutable_data_ptr<int32_t>();
  params->logprobs = token_logprobs.mutable_data_ptr<float>();
  run(*params, target_logits);
  return {tokens, num_accepted, token_logprobs};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> verify(
    const Tensor& target_logits, const Tensor& draft_logits,
    const std::optional<Tensor>& draft_stats, const std::optional<Tensor>& draft_rows,
    const Tensor& draft_token_ids, const Tensor& draft_offsets, const Tensor& target_temperature,
    const Tensor& draft_temperature, const Tensor& step_keys, const Tensor& positions,
    const std::optional<Tensor>& bias, const Tensor& col_offsets, const Tensor& col_drafts,
    const Tensor& col_weights, const Tensor& spread, const Tensor& prior, int64_t max_draft,
    const std::optional<Tensor>& dynamic_tokens, const std::optional<Tensor>& dynamic_logits,
    const std::optional<Tensor>& top_k, const std::optional<Tensor>& top_p,
    const std::optional<Tensor>& min_p, const std::optional<Tensor>& allowed, int64_t logprobs,
    int64_t method) {
  const Checks checks("verify", "target_logits", target_logits);
  VerifyParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  check_longest(checks, "max_draft", max_draft);
  params.max_draft = max_draft;
  params.sequences.count = count_sequences(checks, "draft_offsets", draft_offsets);
  params.drafts.token_ids = drafted_ids(checks, "draft_token_ids", draft_token_ids);
  params.drafts.count = draft_token_ids.size(0);
  params.drafts.offsets = draft_offsets.const_data_ptr<int32_t>();
  constexpr const char* kPerSequence = "[B], one for each sequence of draft_offsets";
  checks.dimensions("draft_logits", draft_logits, 2, "[M, V_d]");
  take_drafter(checks, draft_logits, draft_stats, draft_rows, draft_temperature, bias, col_offsets,
               col_drafts, col_weights, spread, prior, dynamic_tokens, dynamic_logits, kPerSequence,
               "[N], one for each of draft_token_ids", &params);
  const int64_t needed_rows = params.drafts.count + params.sequences.count;
  check_target(checks, target_logits, needed_rows, params.affinity.target_size);
  params.target.size = params.affinity.target_size;
  params.target.logits = checks.rows("target_logits", target_logits);
  if (allowed) {
    params.target.allowed = allowed_rows(checks, *allowed, needed_rows, params.target.size);
  }
  return decide(checks, target_logits, target_temperature, step_keys, positions, top_k, top_p,
                min_p, logprobs, method, kPerSequence, &params);
}

std::tuple<Tensor, Tensor, Tensor> verify_step(
    const Tensor& target_logits, const Tensor& draft_logits, const Tensor& draft_stats,
    const Tensor& draft_token_ids, const Tensor& target_temperature,
    const Tensor& draft_temperature, const Tensor& step_keys, const Tensor& positions,
    const std::optional<Tensor>& bias, const Tensor& col_offsets, const Tensor& col_drafts,
    const Tensor& col_weights, const Tensor& spread, const Tensor& prior,
    const std::optional<Tensor>& dynamic_tokens, const std::optional<Tensor>& dynamic_logits,
    const std::optional<Tensor>& top_k, const std::optional<Tensor>& top_p,
    const std::optional<Tensor>& min_p, const std::optional<Tensor>& allowed, int64_t logprobs,
    int64_t method) {
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

RDK_REGISTER(
    verify,
    "verify(Tensor target_logits, Tensor draft_logits, Tensor? draft_stats, "
    "Tensor? draft_rows, Tensor draft_token_ids, Tensor draft_offsets, "
    "Tensor target_temperature, Tensor draft_temperature, Tensor step_keys, Tensor positions, "
    "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, "
    "Tensor spread, Tensor prior, SymInt max_draft, "
    "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
    "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, "
    "Tensor? allowed=None, int logprobs=0, int method=0) "
    "-> (Tensor tokens, Tensor num_accepted, Tensor logprobs)")
RDK_REGISTER(verify_step,
             "verify_step(Tensor target_logits, Tensor draft_logits, Tensor draft_stats, "
             "Tensor draft_token_ids, Tensor target_temperature, Tensor draft_temperature, "
             "Tensor step_keys, Tensor positions, "
             "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, "
             "Tensor spread, Tensor prior, "
             "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
             "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, "
             "Tensor? allowed=None, int logprobs=0, int method=0) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor logprobs)")
