#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor, Tensor, Tensor> verify_shard(
    Given target_logits, Given sums, Given draft_logits, Given draft_stats, Maybe draft_rows,
    Given draft_token_ids, Given draft_offsets, Given target_temperature, Given draft_temperature,
    Given step_keys, Given positions, Maybe bias, Given col_offsets, Given col_drafts,
    Given col_weights, Given spread, Given prior, int64_t max_draft, int64_t first_chunk,
    Maybe dynamic_tokens, Maybe dynamic_logits, Maybe drawn, Maybe residuals) {
  const Checks checks("verify_shard", "target_logits", target_logits);
  VerifyShardParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  params.max_draft = longest(checks, "max_draft", max_draft);
  take_packed(checks, "draft_token_ids", draft_token_ids, "draft_offsets", draft_offsets,
              &params.drafts, &params.sequences.count);
  constexpr const char* kPerSequence = "[B], one for each sequence of draft_offsets";
  checks.dimensions("draft_logits", draft_logits, 2, "[M, V_d]");
  take_drafter(checks, draft_logits, draft_stats, draft_rows, draft_temperature, bias, col_offsets,
               col_drafts, col_weights, spread, prior, dynamic_tokens, dynamic_logits, kPerSequence,
               "[N], one for each of draft_token_ids", &params);
  const int64_t target_size = params.affinity.target_size;
  const int64_t sequences = params.sequences.count;
  params.shard = take_shard(checks, target_logits, params.drafts.count + sequences, first_chunk,
                            target_size, &params.target);
  const int64_t chunks = chunks_of(target_size);
  params.sums =
      checks.data<float>("sums", sums, {sequences, max_draft + 1, chunks + 1, 2},
                         "[B, max_draft + 1, ceil(V_t / 1024) + 1, 2], those of all ranks");
  take_sequences(checks, "target_temperature", target_temperature, step_keys, positions,
                 kPerSequence, &params.sequences);
  params.drawn = checks.data<int64_t>("drawn", drawn, {sequences}, kPerSequence);
  if (residuals && !drawn) {
    checks.refuse("drawn", "is missing", "to be given with residuals; pass both or drawn alone");
  }
  params.residuals = checks.data<float>("residuals", residuals, {sequences, chunks, 2},
                                        "[B, ceil(V_t / 1024), 2], those of all ranks");
  const Tensor tokens = output(target_logits, {sequences, max_draft + 1}, &params.tokens);
  const Tensor num_accepted = output(target_logits, {sequences}, &params.num_accepted);
  const Tensor found = output(target_logits, {sequences}, &params.found);
  const Tensor residual =
      output(target_logits, {sequences, params.shard.count, 2}, &params.residual);
  run(params, target_logits);
  return {tokens, num_accepted, found, residual};
}

}  // namespace rdk::ops

RDK_REGISTER(verify_shard,
             "verify_shard(Tensor target_logits, Tensor sums, Tensor draft_logits, "
             "Tensor draft_stats, Tensor? draft_rows, Tensor draft_token_ids, "
             "Tensor draft_offsets, Tensor target_temperature, Tensor draft_temperature, "
             "Tensor step_keys, Tensor positions, " RDK_COLUMNS
             ", SymInt max_draft, SymInt first_chunk, " RDK_DYNAMIC
             ", Tensor? drawn=None, Tensor? residuals=None) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor found, Tensor residual)")
