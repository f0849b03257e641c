#include "backend.h"
#include "checks.h"
#include "registration.h"

namespace rdk::ops {

Tensor gather_logits(Given hidden, Given weight, Given tokens, Maybe bias) {
  const Checks checks("gather_logits", "hidden", hidden);
  GatherLogitsParams params{};
  params.dtype = checks.logits("hidden", hidden);
  params.hidden = checks.rows("hidden", hidden);
  params.hidden_size = width_of(hidden);

  checks.device("weight", weight);
  checks.dtype("weight", weight, {hidden.scalar_type()});
  checks.dimensions("weight", weight, 2, "[V, d]");
  params.vocabulary = weight.size(0);
  checks.shape("weight", weight, {params.vocabulary, params.hidden_size}, "[V, d], d as in hidden");
  checks.rows("weight", weight);
  params.weight = weight.const_data_ptr();
  params.weight_stride = weight.stride(0);

  checks.present("tokens", tokens);
  params.tokens_per_row = width_of(tokens);
  params.tokens =
      checks.integers("tokens", tokens, leading_shape(hidden).followed_by(params.tokens_per_row),
                      "[..., C], rows parallel to those of hidden");
  if (bias) {
    checks.plain("bias", *bias, {hidden.scalar_type()}, {params.vocabulary},
                 "[V], one for each row of weight");
    params.bias = bias->const_data_ptr();
  }
  checks.no_gradient("hidden", hidden);
  checks.no_gradient("weight", weight);
  checks.no_gradient("bias", bias);
  const Tensor logits = empty(hidden, shape_of(tokens));
  params.logits = logits.mutable_data_ptr();
  params.rows = leading_shape(hidden).product();
  run(params, hidden);
  return logits;
}

}  // namespace rdk::ops

RDK_REGISTER(gather_logits,
             "gather_logits(Tensor hidden, Tensor weight, Tensor tokens, Tensor? bias=None) "
             "-> Tensor logits")
