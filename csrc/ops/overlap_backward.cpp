#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

std::tuple<Tensor, Tensor> overlap_backward(Given grad, Given below, Given stats,
                                            Given draft_logits, Given draft_temperature, Maybe bias,
                                            Given row_offsets, Given row_targets, Given row_cdf,
                                            Given row_top, Given spread, Given spread_cdf,
                                            Given prior_cdf, Maybe dynamic_tokens,
                                            Maybe dynamic_logits) {
  const Checks checks("overlap_backward", "grad", grad);
  checks.present("grad", grad);
  OverlapBackwardParams params{};
  take_rows(checks, draft_logits, bias, row_offsets, row_targets, row_cdf, row_top, spread,
            spread_cdf, prior_cdf, dynamic_tokens, dynamic_logits, &params);
  const Shape leading = leading_shape(draft_logits);
  constexpr const char* kLeading = "the leading shape of draft_logits";
  params.grad = checks.data<float>("grad", grad, leading, kLeading);
  params.below = reinterpret_cast<const uint32_t*>(
      checks.data<int32_t>("below", below, leading.followed_by(params.words()),
                           "[..., ceil(V_t / 32)], as overlap returned it"));
  params.stats = checks.data<float>("stats", stats, leading.followed_by(params.stats_width()),
                                    "[..., 3 + R], as overlap returned it");
  params.draft_temperature =
      checks.data<float>("draft_temperature", draft_temperature, leading, kLeading);
  checks.no_gradient("grad", grad);
  checks.no_gradient("stats", stats);
  checks.no_gradient("draft_logits", draft_logits);
  checks.no_gradient("draft_temperature", draft_temperature);
  checks.no_gradient("bias", bias);
  checks.no_gradient("spread", spread);
  checks.no_gradient("dynamic_logits", dynamic_logits);
  const Tensor draft_grads = empty(draft_logits, leading.followed_by(params.draft.draft_size));
  const Tensor dynamic_grads = empty(draft_logits, leading.followed_by(params.draft.dynamic_size));
  params.draft_grads = draft_grads.mutable_data_ptr();
  params.dynamic_grads = dynamic_grads.mutable_data_ptr();
  params.rows = leading.product();
  run(params, draft_logits);
  return {draft_grads, dynamic_grads};
}

}  // namespace rdk::ops

RDK_REGISTER(overlap_backward,
             "overlap_backward(Tensor grad, Tensor below, Tensor stats, Tensor draft_logits, "
             "Tensor draft_temperature, " RDK_ROWS ", " RDK_DYNAMIC
             ") "
             "-> (Tensor draft_grads, Tensor dynamic_grads)")
