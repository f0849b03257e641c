#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor, Tensor> overlap(Given target_logits, Given draft_logits,
                                           Given target_temperature, Given draft_temperature,
                                           Maybe bias, Given col_offsets, Given col_drafts,
                                           Given col_weights, Given spread, Given prior,
                                           Maybe dynamic_tokens, Maybe dynamic_logits) {
  const Checks checks("overlap", "target_logits", target_logits);
  OverlapParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  const Shape leading = leading_shape(target_logits);
  take_columns(checks, draft_logits, bias, col_offsets, col_drafts, col_weights, spread, prior,
               dynamic_tokens, dynamic_logits, &params);
  params.target.size = params.affinity.target_size;
  checks.shape("target_logits", target_logits, leading.followed_by(params.target.size),
               "[..., V_t], V_t as in col_offsets");
  checks.shape("draft_logits", draft_logits, leading.followed_by(params.draft.draft_size),
               "[..., V_d], rows parallel to those of target_logits");
  constexpr const char* kLeading = "the leading shape of target_logits";
  params.target_temperature =
      checks.data<float>("target_temperature", target_temperature, leading, kLeading);
  params.draft_temperature =
      checks.data<float>("draft_temperature", draft_temperature, leading, kLeading);
  checks.no_gradient("target_logits", target_logits);
  checks.no_gradient("draft_logits", draft_logits);
  checks.no_gradient("target_temperature", target_temperature);
  checks.no_gradient("draft_temperature", draft_temperature);
  no_gradient_of_columns(checks, bias, col_weights, spread, prior, dynamic_logits);
  params.target.logits = checks.rows("target_logits", target_logits);
  const Tensor alpha = output(target_logits, leading, &params.alpha);
  const Tensor below = output(target_logits, leading.followed_by(params.words()), &params.below);
  const Tensor stats =
      output(target_logits, leading.followed_by(params.stats_width()), &params.stats);
  params.rows = leading.product();
  run(params, target_logits);
  return {alpha, below, stats};
}

}  // namespace rdk::ops

RDK_REGISTER(overlap,
             "overlap(Tensor target_logits, Tensor draft_logits, Tensor target_temperature, "
             "Tensor draft_temperature, " RDK_COLUMNS ", " RDK_DYNAMIC
             ") "
             "-> (Tensor alpha, Tensor below, Tensor stats)")
