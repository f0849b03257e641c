#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

Tensor sum_shard(Given target_logits, Given draft_token_ids, Given draft_offsets,
                 Given target_temperature, int64_t max_draft, int64_t first_chunk,
                 int64_t target_size) {
  const Checks checks("sum_shard", "target_logits", target_logits);
  SumShardParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  take_packed(checks, "draft_token_ids", draft_token_ids, "draft_offsets", draft_offsets,
              &params.drafts, &params.sequences);
  params.temperature =
      checks.data<float>("target_temperature", target_temperature, {params.sequences},
                         "[B], one for each sequence of draft_offsets");
  params.max_draft = longest(checks, "max_draft", max_draft);
  if (target_size < 1 || target_size > kMaxColumns) {
    checks.refuse("target_size", "is " + std::to_string(target_size), "1 to 2^28");
  }
  params.shard = take_shard(checks, target_logits, params.drafts.count + params.sequences,
                            first_chunk, target_size, &params.target);
  const Tensor sums = output(
      target_logits, {params.sequences, max_draft + 1, params.shard.count + 1, 2}, &params.sums);
  run(params, target_logits);
  return sums;
}

}  // namespace rdk::ops

RDK_REGISTER(sum_shard,
             "sum_shard(Tensor target_logits, Tensor draft_token_ids, Tensor draft_offsets, "
             "Tensor target_temperature, SymInt max_draft, SymInt first_chunk, "
             "SymInt target_size) -> Tensor sums")
