#include "affinity_arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor> overlap_backward(
    const Tensor& grad, const Tensor& below, const Tensor& stats, const Tensor& draft_logits,
    const Tensor& draft_temperature, const std::optional<Tensor>& bias, const Tensor& row_offsets,
    const Tensor& row_targets, const Tensor& row_cdf, const Tensor& row_top, const Tensor& spread,
    const Tensor& spread_cdf, const Tensor& prior_cdf, const std::optional<Tensor>& dynamic_tokens,
    const std::optional<Tensor>& dynamic_logits) {
  const Checks checks("overlap_backward", "grad", grad);
  checks.present("grad", grad);
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const Shape leading = leading_shape(draft_logits);
  const int64_t draft_size = draft_logits.size(draft_logits.dim() - 1);
  OverlapBackwardParams params{};
  params.affinity = affinity_rows(checks, draft_size, bias, row_offsets, row_targets, row_cdf,
                                  row_top, spread, spread_cdf, prior_cdf);
  params.draft = draft_columns(checks, draft_logits, dtype, bias, params.affinity.target_size,
                               dynamic_tokens, dynamic_logits);
  constexpr const char* kLeading = "the leading shape of draft_logits";
  checks.plain("grad", grad, ScalarType::Float, leading, kLeading);
  checks.plain("below", below, ScalarType::Int, leading.followed_by(params.words()),
               "[..., ceil(V_t / 32)], as overlap returned it");
  checks.plain("stats", stats, ScalarType::Float, leading.followed_by(params.stats_width()),
               "[..., 3 + R], as overlap returned it");
  checks.plain("draft_temperature", draft_temperature, ScalarType::Float, leading, kLeading);
  checks.no_gradient("grad", grad);
  checks.no_gradient("stats", stats);
  checks.no_gradient("draft_logits", draft_logits);
  checks.no_gradient("draft_temperature", draft_temperature);
  if (bias) checks.no_gradient("bias", *bias);
  checks.no_gradient("spread", spread);
  if (dynamic_logits) checks.no_gradient("dynamic_logits", *dynamic_logits);
  const Tensor draft_grads = empty(draft_logits, leading.followed_by(draft_size));
  const Tensor dynamic_grads = empty(draft_logits, leading.followed_by(params.draft.dynamic_size));

  params.grad = grad.const_data_ptr<float>();
  params.below = reinterpret_cast<const uint32_t*>(below.const_data_ptr<int32_t>());
  params.stats = stats.const_data_ptr<float>();
  params.draft_temperature = draft_temperature.const_data_ptr<float>();
  params.draft_grads = draft_grads.mutable_data_ptr();
  params.dynamic_grads = dynamic_grads.mutable_data_ptr();
  params.rows = leading.product();
  run(params, draft_logits);
  return {draft_grads, dynamic_grads};
}

}  // namespace rdk::ops

RDK_REGISTER(overlap_backward,
             "overlap_backward(Tensor grad, Tensor below, Tensor stats, Tensor draft_logits, "
             "Tensor draft_temperature, Tensor? bias, Tensor row_offsets, Tensor row_targets, "
             "Tensor row_cdf, Tensor row_top, Tensor spread, Tensor spread_cdf, Tensor prior_cdf, "
             "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None) "
             "-> (Tensor draft_grads, Tensor dynamic_grads)")
