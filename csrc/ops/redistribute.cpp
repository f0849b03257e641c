#include "affinity_arguments.h"
#include "backend.h"
#include "registration.h"
#include "truncation_arguments.h"

namespace rdk::ops {

Tensor redistribute(const Tensor& draft_logits, const Tensor& temperature,
                    const std::optional<Tensor>& bias, const Tensor& col_offsets,
                    const Tensor& col_drafts, const Tensor& col_weights, const Tensor& spread,
                    const Tensor& prior, const Tensor& row_top,
                    const std::optional<Tensor>& dynamic_tokens,
                    const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& top_k,
                    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p) {
  const Checks checks("redistribute", "draft_logits", draft_logits);
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const Shape leading = leading_shape(draft_logits);
  const int64_t draft_size = draft_logits.size(draft_logits.dim() - 1);

  RedistributeParams params{};
  params.affinity = affinity_columns(checks, draft_size, bias, col_offsets, col_drafts, col_weights,
                                     spread, prior);
  params.draft = draft_columns(checks, draft_logits, dtype, bias, params.affinity.target_size,
                               dynamic_tokens, dynamic_logits);
  checks.plain("row_top", row_top, ScalarType::Int, {draft_size},
               "[V_d], one for each column of draft_logits");
  checks.plain("temperature", temperature, ScalarType::Float, leading,
               "the leading shape of draft_logits");
  params.truncation = truncation(checks, draft_size + params.draft.dynamic_size, leading,
                                 "the leading shape of draft_logits", top_k, top_p, min_p);
  checks.no_gradient("draft_logits", draft_logits);
  checks.no_gradient("temperature", temperature);
  no_gradient_of_columns(checks, bias, col_weights, spread, prior, dynamic_logits);
  const Tensor probs =
      empty(draft_logits, leading.followed_by(params.affinity.target_size), ScalarType::Float);

  params.row_top = row_top.const_data_ptr<int32_t>();
  params.temperature = temperature.const_data_ptr<float>();
  params.probs = probs.mutable_data_ptr<float>();
  params.rows = leading.product();
  run(params, draft_logits);
  return probs;
}

}  // namespace rdk::ops

RDK_REGISTER(redistribute,
             "redistribute(Tensor draft_logits, Tensor temperature, "
             "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, "
             "Tensor spread, Tensor prior, Tensor row_top, "
             "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
             "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None) -> Tensor probs")
