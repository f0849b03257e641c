#include "backend.h"
#include "draft_arguments.h"
#include "registration.h"
#include "target_arguments.h"
#include "truncation_arguments.h"

namespace rdk::ops {

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
  constexpr const char* kPerSequence = "[B], one for each sequence of draft_offsets";
  take_drafter(checks, draft_logits, draft_stats, draft_rows, draft_temperature, bias, col_offsets,
               col_drafts, col_weights, spread, prior, dynamic_tokens, dynamic_logits, kPerSequence,
               "[N], one for each of draft_token_ids", &params);
  check_target(checks, target_logits, params.drafts.count + params.sequences.count,
               params.affinity.target_size);
  params.target.size = params.affinity.target_size;
  params.target.logits = checks.rows("target_logits", target_logits);

  const Shape per_sequence = {params.sequences.count};
  checks.plain("target_temperature", target_temperature, ScalarType::Float, per_sequence,
               kPerSequence);
  checks.plain("step_keys", step_keys, ScalarType::Long, per_sequence, kPerSequence);
  checks.plain("positions", positions, ScalarType::Long, per_sequence, kPerSequence);
  params.sequences.truncation = truncation(checks, params.affinity.target_size, per_sequence,
                                           kPerSequence, top_k, top_p, min_p);
  if (allowed) {
    params.target.allowed =
        allowed_rows(checks, *allowed, params.drafts.count + params.sequences.count,
                     params.affinity.target_size);
  }
  if (logprobs < 0 || logprobs > 2) {
    checks.refuse("logprobs", "is " + std::to_string(logprobs),
                  "0 for none, 1 for those of the processed distribution or 2 for those of the raw "
                  "logits");
  }
  params.logprobs_of = static_cast<Logprobs>(logprobs);
  params.method = verification_method(checks, method);
  const Tensor tokens = torch::stable::new_empty(
      target_logits, Shape{params.sequences.count, max_draft + 1}, ScalarType::Long);
  const Tensor num_accepted =
      torch::stable::new_empty(target_logits, per_sequence, ScalarType::Int);
  const Tensor token_logprobs = torch::stable::new_empty(
      target_logits, logprobs == 0 ? Shape{0} : Shape{params.sequences.count, max_draft + 1},
      ScalarType::Float);

  params.drafts.offsets = draft_offsets.const_data_ptr<int32_t>();
  params.sequences.temperature = target_temperature.const_data_ptr<float>();
  params.sequences.step_keys = step_keys.const_data_ptr<int64_t>();
  params.sequences.positions = positions.const_data_ptr<int64_t>();
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  params.num_accepted = num_accepted.mutable_data_ptr<int32_t>();
  params.logprobs = token_logprobs.mutable_data_ptr<float>();
  run(params, target_logits);
  return {tokens, num_accepted, token_logprobs};
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
