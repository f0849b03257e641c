#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

namespace {

constexpr const char* kLeading = "the leading shape of draft_logits";

// The parameters that every draft has; its keys and outputs are still to be set.
DraftParams draft_params(const Checks& checks, Given draft_logits, Given temperature,
                         Given positions, Maybe bias, Given row_offsets, Given row_targets,
                         Given row_cdf, Given row_top, Given spread, Given spread_cdf,
                         Given prior_cdf, Maybe dynamic_tokens, Maybe dynamic_logits, Maybe top_k,
                         Maybe top_p, Maybe min_p) {
  DraftParams params{};
  take_rows(checks, draft_logits, bias, row_offsets, row_targets, row_cdf, row_top, spread,
            spread_cdf, prior_cdf, dynamic_tokens, dynamic_logits, &params);
  const Shape leading = leading_shape(draft_logits);
  params.temperature = checks.data<float>("temperature", temperature, leading, kLeading);
  params.positions = checks.data<int64_t>("positions", positions, leading, kLeading);
  params.truncation = truncation(checks, params.draft.draft_size + params.draft.dynamic_size,
                                 leading, kLeading, top_k, top_p, min_p);
  params.stats_width = 2 + params.affinity.rank + (params.truncation.given ? 1 : 0);
  params.rows = leading.product();
  return params;
}

}  // namespace

std::tuple<Tensor, Tensor> draft(Given draft_logits, Given temperature, Given step_keys,
                                 Given positions, Maybe bias, Given row_offsets, Given row_targets,
                                 Given row_cdf, Given row_top, Given spread, Given spread_cdf,
                                 Given prior_cdf, Maybe dynamic_tokens, Maybe dynamic_logits,
                                 Maybe top_k, Maybe top_p, Maybe min_p, Maybe branches) {
  const Checks checks("draft", "draft_logits", draft_logits);
  DraftParams params = draft_params(checks, draft_logits, temperature, positions, bias, row_offsets,
                                    row_targets, row_cdf, row_top, spread, spread_cdf, prior_cdf,
                                    dynamic_tokens, dynamic_logits, top_k, top_p, min_p);
  const Shape leading = leading_shape(draft_logits);
  params.step_keys = checks.data<int64_t>("step_keys", step_keys, leading, kLeading);
  params.branches = checks.data<int32_t>("branches", branches, leading, kLeading);
  const Tensor tokens = output(draft_logits, leading, &params.tokens);
  const Tensor stats = output(draft_logits, leading.followed_by(params.stats_width), &params.stats);
  run(params, draft_logits);
  return {tokens, stats};
}

Tensor draft_step(Given draft_logits, Given step_tokens, Given step_stats, Given step_keys,
                  Given step_logits, Maybe step_dynamic_tokens, Maybe step_dynamic_logits,
                  int64_t place, Given temperature, Given seeds, Given positions, Maybe bias,
                  Given row_offsets, Given row_targets, Given row_cdf, Given row_top, Given spread,
                  Given spread_cdf, Given prior_cdf, Maybe dynamic_tokens, Maybe dynamic_logits,
                  Maybe top_k, Maybe top_p, Maybe min_p, Maybe slots, Maybe place_id) {
  const Checks checks("draft_step", "draft_logits", draft_logits);
  checks.dimensions("draft_logits", draft_logits, 2, "[B, V_d], a row for each sequence");
  DraftParams params = draft_params(checks, draft_logits, temperature, positions, bias, row_offsets,
                                    row_targets, row_cdf, row_top, spread, spread_cdf, prior_cdf,
                                    dynamic_tokens, dynamic_logits, top_k, top_p, min_p);
  StepRows& step = params.step;
  checks.dimensions("step_tokens", step_tokens, 2, "[S, K]");
  step.slots = step_tokens.size(0);
  step.places = step_tokens.size(1);
  if (place < 0 || place >= step.places) {
    checks.refuse("place", "is " + std::to_string(place),
                  "0 to K - 1 = " + std::to_string(step.places - 1) + ", a place of step_tokens");
  }
  step.place = place;
  if (place_id) step.place_id = checks.integers("place_id", *place_id, {1}, "[1], the place");
  if (slots) step.slot_ids = checks.integers("slots", *slots, {params.rows}, kLeading);
  const Shape rows = {step.slots, step.places};
  const ScalarType type = draft_logits.scalar_type();
  step.tokens = checks.written<int64_t>("step_tokens", step_tokens, rows, "[S, K]");
  params.stats =
      checks.written<float>("step_stats", step_stats, rows.followed_by(params.stats_width),
                            "[S, K, 2 + R], one more where top_k, top_p or min_p is given");
  step.step_keys = checks.written<int64_t>("step_keys", step_keys, {step.slots}, "[S]");
  checks.plain("step_logits", step_logits, {type}, rows.followed_by(params.draft.draft_size),
               "[S, K, V_d], of the dtype of draft_logits");
  step.logits = step_logits.mutable_data_ptr();
  checks.together("step_dynamic_tokens", step_dynamic_tokens, "dynamic_tokens", dynamic_tokens);
  checks.together("step_dynamic_logits", step_dynamic_logits, "dynamic_logits", dynamic_logits);
  if (dynamic_tokens) {
    const Shape dynamic = rows.followed_by(params.draft.dynamic_size);
    step.dynamic_tokens = checks.written<int32_t>("step_dynamic_tokens", *step_dynamic_tokens,
                                                  dynamic, "[S, K, C], C as in dynamic_tokens");
    checks.plain("step_dynamic_logits", *step_dynamic_logits, {type}, dynamic,
                 "[S, K, C], of the dtype of draft_logits");
    step.dynamic_logits = step_dynamic_logits->mutable_data_ptr();
  }
  step.seeds = checks.data<int64_t>("seeds", seeds, {params.rows}, kLeading);
  const Tensor tokens = output(draft_logits, {params.rows, 1}, &params.tokens);
  run(params, draft_logits);
  return tokens;
}

}  // namespace rdk::ops

RDK_REGISTER(
    draft,
    "draft(Tensor draft_logits, Tensor temperature, Tensor step_keys, Tensor positions, " RDK_ROWS
    ", " RDK_DYNAMIC ", " RDK_LIMITS
    ", Tensor? branches=None) "
    "-> (Tensor tokens, Tensor stats)")
RDK_REGISTER(draft_step,
             "draft_step(Tensor draft_logits, Tensor(a!) step_tokens, Tensor(b!) step_stats, "
             "Tensor(c!) step_keys, Tensor(d!) step_logits, Tensor(e!)? step_dynamic_tokens, "
             "Tensor(f!)? step_dynamic_logits, SymInt place, "
             "Tensor temperature, Tensor seeds, Tensor positions, " RDK_ROWS ", " RDK_DYNAMIC
             ", " RDK_LIMITS
             ", "
             "Tensor? slots=None, Tensor? place_id=None) -> Tensor tokens")
