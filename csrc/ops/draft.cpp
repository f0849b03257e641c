#include "affinity_arguments.h"
#include "backend.h"
#include "registration.h"
#include "truncation_arguments.h"

namespace rdk::ops {

namespace {

constexpr const char* kLeading = "the leading shape of draft_logits";

// What every draft has; its keys and outputs are still to be set.
DraftParams draft_params(const Checks& checks, const Tensor& draft_logits,
                         const Tensor& temperature, const Tensor& positions,
                         const std::optional<Tensor>& bias, const Tensor& row_offsets,
                         const Tensor& row_targets, const Tensor& row_cdf, const Tensor& row_top,
                         const Tensor& spread, const Tensor& spread_cdf, const Tensor& prior_cdf,
                         const std::optional<Tensor>& dynamic_tokens,
                         const std::optional<Tensor>& dynamic_logits,
                         const std::optional<Tensor>& top_k, const std::optional<Tensor>& top_p,
                         const std::optional<Tensor>& min_p) {
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const Shape leading = leading_shape(draft_logits);
  const int64_t draft_size = draft_logits.size(draft_logits.dim() - 1);
  DraftParams params{};
  params.affinity = affinity_rows(checks, draft_size, bias, row_offsets, row_targets, row_cdf,
                                  row_top, spread, spread_cdf, prior_cdf);
  params.draft = draft_columns(checks, draft_logits, dtype, bias, params.affinity.target_size,
                               dynamic_tokens, dynamic_logits);
  checks.plain("temperature", temperature, ScalarType::Float, leading, kLeading);
  checks.plain("positions", positions, ScalarType::Long, leading, kLeading);
  params.truncation = truncation(checks, draft_size + params.draft.dynamic_size, leading, kLeading,
                                 top_k, top_p, min_p);
  params.stats_width = 2 + params.affinity.rank + (params.truncation.given ? 1 : 0);
  params.temperature = temperature.const_data_ptr<float>();
  params.positions = positions.const_data_ptr<int64_t>();
  params.rows = leading.product();
  return params;
}

}  // namespace

std::tuple<Tensor, Tensor> draft(
    const Tensor& draft_logits, const Tensor& temperature, const Tensor& step_keys,
    const Tensor& positions, const std::optional<Tensor>& bias, const Tensor& row_offsets,
    const Tensor& row_targets, const Tensor& row_cdf, const Tensor& row_top, const Tensor& spread,
    const Tensor& spread_cdf, const Tensor& prior_cdf, const std::optional<Tensor>& dynamic_tokens,
    const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& top_k,
    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p,
    const std::optional<Tensor>& branches) {
  const Checks checks("draft", "draft_logits", draft_logits);
  DraftParams params = draft_params(checks, draft_logits, temperature, positions, bias, row_offsets,
                                    row_targets, row_cdf, row_top, spread, spread_cdf, prior_cdf,
                                    dynamic_tokens, dynamic_logits, top_k, top_p, min_p);
  const Shape leading = leading_shape(draft_logits);
  checks.plain("step_keys", step_keys, ScalarType::Long, leading, kLeading);
  params.step_keys = step_keys.const_data_ptr<int64_t>();
  if (branches) {
    checks.plain("branches", *branches, ScalarType::Int, leading, kLeading);
    params.branches = branches->const_data_ptr<int32_t>();
  }
  const Tensor tokens = empty(draft_logits, leading, ScalarType::Long);
  const Tensor stats =
      empty(draft_logits, leading.followed_by(params.stats_width), ScalarType::Float);
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  params.stats = stats.mutable_data_ptr<float>();
  run(params, draft_logits);
  return {tokens, stats};
}

Tensor draft_step(const Tensor& draft_logits, const Tensor& step_tokens, const Tensor& step_stats,
                  const Tensor& step_keys, const Tensor& step_logits,
                  const std::optional<Tensor>& step_dynamic_tokens,
                  const std::optional<Tensor>& step_dynamic_logits, int64_t place,
                  const Tensor& temperature, const Tensor& seeds, const Tensor& positions,
                  const std::optional<Tensor>& bias, const Tensor& row_offsets,
                  const Tensor& row_targets, const Tensor& row_cdf, const Tensor& row_top,
                  const Tensor& spread, const Tensor& spread_cdf, const Tensor& prior_cdf,
                  const std::optional<Tensor>& dynamic_tokens,
                  const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& top_k,
                  const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p,
                  const std::optional<Tensor>& slots, const std::optional<Tensor>& place_id) {
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
  if (place_id) {
    checks.integers("place_id", *place_id, {1}, "[1], the place");
    step.place_id = token_ids(*place_id);
  }
  if (slots) {
    checks.integers("slots", *slots, {params.rows}, kLeading);
    step.slot_ids = token_ids(*slots);
  }
  const Shape rows = {step.slots, step.places};
  const ScalarType type = draft_logits.scalar_type();
  checks.plain("step_tokens", step_tokens, ScalarType::Long, rows, "[S, K]");
  checks.plain("step_stats", step_stats, ScalarType::Float, rows.followed_by(params.stats_width),
               "[S, K, 2 + R], one more where top_k, top_p or min_p is given");
  checks.plain("step_keys", step_keys, ScalarType::Long, {step.slots}, "[S]");
  checks.plain("step_logits", step_logits, type, rows.followed_by(params.draft.draft_size),
               "[S, K, V_d], of the dtype of draft_logits");
  checks.together("step_dynamic_tokens", step_dynamic_tokens, "dynamic_tokens", dynamic_tokens);
  checks.together("step_dynamic_logits", step_dynamic_logits, "dynamic_logits", dynamic_logits);
  if (dynamic_tokens) {
    const Shape dynamic = rows.followed_by(params.draft.dynamic_size);
    checks.plain("step_dynamic_tokens", *step_dynamic_tokens, ScalarType::Int, dynamic,
                 "[S, K, C], C as in dynamic_tokens");
    checks.plain("step_dynamic_logits", *step_dynamic_logits, type, dynamic,
                 "[S, K, C], of the dtype of draft_logits");
    step.dynamic_tokens = step_dynamic_tokens->mutable_data_ptr<int32_t>();
    step.dynamic_logits = step_dynamic_logits->mutable_data_ptr();
  }
  checks.plain("seeds", seeds, ScalarType::Long, {params.rows}, kLeading);
  const Tensor tokens = empty(draft_logits, {params.rows, 1}, ScalarType::Long);
  step.seeds = seeds.const_data_ptr<int64_t>();
  step.step_keys = step_keys.mutable_data_ptr<int64_t>();
  step.tokens = step_tokens.mutable_data_ptr<int64_t>();
  step.logits = step_logits.mutable_data_ptr();
  params.stats = step_stats.mutable_data_ptr<float>();
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  run(params, draft_logits);
  return tokens;
}

}  // namespace rdk::ops

RDK_REGISTER(
    draft,
    "draft(Tensor draft_logits, Tensor temperature, Tensor step_keys, Tensor positions, "
    "Tensor? bias, Tensor row_offsets, Tensor row_targets, Tensor row_cdf, Tensor row_top, "
    "Tensor spread, Tensor spread_cdf, Tensor prior_cdf, "
    "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
    "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, Tensor? branches=None) "
    "-> (Tensor tokens, Tensor stats)")
RDK_REGISTER(
    draft_step,
    "draft_step(Tensor draft_logits, Tensor(a!) step_tokens, Tensor(b!) step_stats, "
    "Tensor(c!) step_keys, Tensor(d!) step_logits, Tensor(e!)? step_dynamic_tokens, "
    "Tensor(f!)? step_dynamic_logits, SymInt place, "
    "Tensor temperature, Tensor seeds, Tensor positions, "
    "Tensor? bias, Tensor row_offsets, Tensor row_targets, Tensor row_cdf, Tensor row_top, "
    "Tensor spread, Tensor spread_cdf, Tensor prior_cdf, "
    "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
    "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, Tensor? slots=None, "
    "Tensor? place_id=None) "
    "-> Tensor tokens")
