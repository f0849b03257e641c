#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

Tensor redistribute(Given draft_logits, Given temperature, Maybe bias, Given col_offsets,
                    Given col_drafts, Given col_weights, Given spread, Given prior, Given row_top,
                    Maybe dynamic_tokens, Maybe dynamic_logits, Maybe top_k, Maybe top_p,
                    Maybe min_p) {
  const Checks checks("redistribute", "draft_logits", draft_logits);
  RedistributeParams params{};
  take_columns(checks, draft_logits, bias, col_offsets, col_drafts, col_weights, spread, prior,
               dynamic_tokens, dynamic_logits, &params);
  const Shape leading = leading_shape(draft_logits);
  const int64_t draft_size = params.draft.draft_size;
  constexpr const char* kLeading = "the leading shape of draft_logits";
  params.row_top = checks.data<int32_t>("row_top", row_top, {draft_size},
                                        "[V_d], one for each column of draft_logits");
  params.temperature = checks.data<float>("temperature", temperature, leading, kLeading);
  params.truncation = truncation(checks, draft_size + params.draft.dynamic_size, leading, kLeading,
                                 top_k, top_p, min_p);
  checks.no_gradient("draft_logits", draft_logits);
  checks.no_gradient("temperature", temperature);
  no_gradient_of_columns(checks, bias, col_weights, spread, prior, dynamic_logits);
  const Tensor probs =
      output(draft_logits, leading.followed_by(params.affinity.target_size), &params.probs);
  params.rows = leading.product();
  run(params, draft_logits);
  return probs;
}

}  // namespace rdk::ops

RDK_REGISTER(redistribute, "redistribute(Tensor draft_logits, Tensor temperature, " RDK_COLUMNS
                           ", "
                           "Tensor row_top, " RDK_DYNAMIC ", " RDK_LIMITS ") -> Tensor probs")
