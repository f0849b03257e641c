#include "affinity_arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor, Tensor> overlap(
    const Tensor& target_logits, const Tensor& draft_logits, const Tensor& target_temperature,
    const Tensor& draft_temperature, const std::optional<Tensor>& bias, const Tensor& col_offsets,
    const Tensor& col_drafts, const Tensor& col_weights, const Tensor& spread, const Tensor& prior,
    const std::optional<Tensor>& dynamic_tokens, const std::optional<Tensor>& dynamic_logits) {
  const Checks checks("overlap", "target_logits", target_logits);
  OverlapParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  const Shape leading = leading_shape(target_logits);
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const int64_t draft_size = draft_logits.size(draft_logits.dim() - 1);
  params.affinity = affinity_columns(checks, draft_size, bias, col_offsets, col_drafts, col_weights,
                                     spread, prior);
  const int64_t target_size = params.affinity.target_size;
  checks.shape("target_logits", target_logits, leading.followed_by(target_size),
               "[..., V_t], V_t as in col_offsets");
  checks.shape("draft_logits", draft_logits, leading.followed_by(draft_size),
               "[..., V_d], rows parallel to those of target_logits");
  params.draft =
      draft_columns(checks, draft_logits, dtype, bias, target_size, dynamic_tokens, dynamic_logits);
  constexpr const char* kLeading = "the leading shape of target_logits";
  checks.plain("target_temperature", target_temperature, ScalarType::Float, leading, kLeading);
  checks.plain("draft_temperature", draft_temperature, ScalarType::Float, leading, kLeading);
  checks.no_gradient("target_logits", target_logits);
  checks.no_gradient("draft_logits", draft_logits);
  checks.no_gradient("target_temperature", target_temperature);
  checks.no_gradient("draft_temperature", draft_temperature);
  no_gradient_of_columns(checks, bias, col_weights, spread, prior, dynamic_logits);
  params.target.logits = checks.rows("target_logits", target_logits);
  params.target.size = target_size;
  const Tensor alpha = empty(target_logits, leading, ScalarType::Float);
  const Tensor below = empty(target_logits, leading.followed_by(params.words()), ScalarType::Int);
  const Tensor stats =
      empty(target_logits, leading.followed_by(params.stats_width()), ScalarType::Float);

  params.target_temperature = target_temperature.const_data_ptr<float>();
  params.draft_temperature = draft_temperature.const_data_ptr<float>();
  params.alpha = alpha.mutable_data_ptr<float>();
  params.below = reinterpret_cast<uint32_t*>(below.mutable_data_ptr<int32_t>());
  params.stats = stats.mutable_data_ptr<float>();
  params.rows = leading.product();
  run(params, target_logits);
  return {alpha, below, stats};
}

}  // namespace rdk::ops

RDK_REGISTER(overlap,
             "overlap(Tensor target_logits, Tensor draft_logits, Tensor target_temperature, "
             "Tensor draft_temperature, Tensor? bias, Tensor col_offsets, Tensor col_drafts, "
             "Tensor col_weights, Tensor spread, Tensor prior, "
             "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None) "
             "-> (Tensor alpha, Tensor below, Tensor stats)")
