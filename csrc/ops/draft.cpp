#include "affinity_arguments.h"
#include "backend.h"
#include "registration.h"
#include "truncation_arguments.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor> draft(
    const Tensor& draft_logits, const Tensor& temperature, const Tensor& step_keys,
    const Tensor& positions, const std::optional<Tensor>& bias, const Tensor& row_offsets,
    const Tensor& row_targets, const Tensor& row_cdf, const Tensor& row_top, const Tensor& spread,
    const Tensor& spread_cdf, const Tensor& prior_cdf, const std::optional<Tensor>& dynamic_tokens,
    const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& top_k,
    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p,
    const std::optional<Tensor>& branches) {
  const Checks checks("draft", "draft_logits", draft_logits);
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const Shape leading = leading_shape(draft_logits);
  const int64_t draft_size = draft_logits.size(draft_logits.dim() - 1);

  DraftParams params{};
  params.affinity = affinity_rows(checks, draft_size, bias, row_offsets, row_targets, row_cdf,
                                  row_top, spread, spread_cdf, prior_cdf);
  params.draft = draft_columns(checks, draft_logits, dtype, bias, params.affinity.target_size,
                               dynamic_tokens, dynamic_logits);
  constexpr const char* kLeading = "the leading shape of draft_logits";
  checks.plain("temperature", temperature, ScalarType::Float, leading, kLeading);
  checks.plain("step_keys", step_keys, ScalarType::Long, leading, kLeading);
  checks.plain("positions", positions, ScalarType::Long, leading, kLeading);
  params.truncation = truncation(checks, draft_size + params.draft.dynamic_size, leading, kLeading,
                                 top_k, top_p, min_p);
  params.stats_width = 2 + params.affinity.rank + (params.truncation.given ? 1 : 0);
  if (branches) {
    checks.plain("branches", *branches, ScalarType::Int, leading, kLeading);
    params.branches = branches->const_data_ptr<int32_t>();
  }
  const Tensor tokens = torch::stable::new_empty(draft_logits, leading, ScalarType::Long);
  const Tensor stats = torch::stable::new_empty(
      draft_logits, with_last(leading, params.stats_width), ScalarType::Float);

  params.temperature = temperature.const_data_ptr<float>();
  params.step_keys = step_keys.const_data_ptr<int64_t>();
  params.positions = positions.const_data_ptr<int64_t>();
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  params.stats = stats.mutable_data_ptr<float>();
  params.rows = product(leading);
  run(params, draft_logits);
  return {tokens, stats};
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
