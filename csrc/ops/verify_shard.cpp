#include "backend.h"
#include "draft_arguments.h"
#include "registration.h"
#include "shard_arguments.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor, Tensor, Tensor> verify_shard(
    const Tensor& target_logits, const Tensor& sums, const Tensor& draft_logits,
    const Tensor& draft_stats, const std::optional<Tensor>& draft_rows,
    const Tensor& draft_token_ids, const Tensor& draft_offsets, const Tensor& target_temperature,
    const Tensor& draft_temperature, const Tensor& step_keys, const Tensor& positions,
    const std::optional<Tensor>& bias, const Tensor& col_offsets, const Tensor& col_drafts,
    const Tensor& col_weights, const Tensor& spread, const Tensor& prior, int64_t max_draft,
    int64_t first_chunk, const std::optional<Tensor>& dynamic_tokens,
    const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& drawn,
    const std::optional<Tensor>& residuals) {
  const Checks checks("verify_shard", "target_logits", target_logits);
  VerifyShardParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  check_longest(checks, "max_draft", max_draft);
  params.max_draft = max_draft;
  params.sequences.count = count_sequences(checks, "draft_offsets", draft_offsets);
  params.drafts.token_ids = drafted_ids(checks, "draft_token_ids", draft_token_ids);
  params.drafts.count = draft_token_ids.size(0);
  constexpr const char* kPerSequence = "[B], one for each sequence of draft_offsets";
  checks.dimensions("draft_logits", draft_logits, 2, "[M, V_d]");
  take_drafter(checks, draft_logits, draft_stats, draft_rows, draft_temperature, bias, col_offsets,
               col_drafts, col_weights, spread, prior, dynamic_tokens, dynamic_logits, kPerSequence,
               "[N], one for each of draft_token_ids", &params);
  const int64_t target_size = params.affinity.target_size;
  const int64_t sequences = params.sequences.count;
  params.shard = take_shard(checks, target_logits, params.drafts.count + sequences, first_chunk,
                            target_size, &params.target);
  const int64_t chunks = (target_size + kChunk - 1) / kChunk;
  checks.plain("sums", sums, ScalarType::Float, {sequences, max_draft + 1, chunks + 1, 2},
               "[B, max_draft + 1, ceil(V_t / 1024) + 1, 2], those of all ranks");
  const Shape per_sequence = {sequences};
  checks.plain("target_temperature", target_temperature, ScalarType::Float, per_sequence,
               kPerSequence);
  checks.plain("step_keys", step_keys, ScalarType::Long, per_sequence, kPerSequence);
  checks.plain("positions", positions, ScalarType::Long, per_sequence, kPerSequence);
  if (drawn) {
    checks.plain("drawn", *drawn, ScalarType::Long, per_sequence, kPerSequence);
    params.drawn = drawn->const_data_ptr<int64_t>();
  }
  if (residuals) {
    if (!drawn) {
      checks.refuse("drawn", "is missing", "to be given with residuals; pass both or drawn alone");
    }
    checks.plain("residuals", *residuals, ScalarType::Float, {sequences, chunks, 2},
                 "[B, ceil(V_t / 1024), 2], those of all ranks");
    params.residuals = residuals->const_data_ptr<float>();
  }
  const Tensor tokens = empty(target_logits, {sequences, max_draft + 1}, ScalarType::Long);
  const Tensor num_accepted = empty(target_logits, per_sequence, ScalarType::Int);
  const Tensor found = empty(target_logits, per_sequence, ScalarType::Long);
  const Tensor residual =
      empty(target_logits, {sequences, params.shard.count, 2}, ScalarType::Float);

  params.sums = sums.const_data_ptr<float>();
  params.drafts.offsets = draft_offsets.const_data_ptr<int32_t>();
  params.sequences.temperature = target_temperature.const_data_ptr<float>();
  params.sequences.step_keys = step_keys.const_data_ptr<int64_t>();
  params.sequences.positions = positions.const_data_ptr<int64_t>();
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  params.num_accepted = num_accepted.mutable_data_ptr<int32_t>();
  params.found = found.mutable_data_ptr<int64_t>();
  params.residual = residual.mutable_data_ptr<float>();
  run(params, target_logits);
  return {tokens, num_accepted, found, residual};
}

}  // namespace rdk::ops

RDK_REGISTER(verify_shard,
             "verify_shard(Tensor target_logits, Tensor sums, Tensor draft_logits, "
             "Tensor draft_stats, Tensor? draft_rows, Tensor draft_token_ids, "
             "Tensor draft_offsets, Tensor target_temperature, Tensor draft_temperature, "
             "Tensor step_keys, Tensor positions, "
             "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, "
             "Tensor spread, Tensor prior, SymInt max_draft, SymInt first_chunk, "
             "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
             "Tensor? drawn=None, Tensor? residuals=None) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor found, Tensor residual)")
