#include "backend.h"
#include "registration.h"
#include "shard_arguments.h"

namespace rdk::ops {

Tensor sum_shard(const Tensor& target_logits, const Tensor& draft_token_ids,
                 const Tensor& draft_offsets, const Tensor& target_temperature, int64_t max_draft,
                 int64_t first_chunk, int64_t target_size) {
  const Checks checks("sum_shard", "target_logits", target_logits);
  SumShardParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  params.drafts.token_ids = drafted_ids(checks, "draft_token_ids", draft_token_ids);
  params.drafts.count = draft_token_ids.size(0);
  params.sequences = count_sequences(checks, "draft_offsets", draft_offsets);
  checks.plain("target_temperature", target_temperature, ScalarType::Float, {params.sequences},
               "[B], one for each sequence of draft_offsets");
  check_longest(checks, "max_draft", max_draft);
  if (target_size < 1 || target_size > kMaxColumns) {
    checks.refuse("target_size", "is " + std::to_string(target_size), "1 to 2^28");
  }
  params.shard = take_shard(checks, target_logits, params.drafts.count + params.sequences,
                            first_chunk, target_size, &params.target);
  const Tensor sums =
      empty(target_logits, Shape{params.sequences, max_draft + 1, params.shard.count + 1, 2},
            ScalarType::Float);

  params.max_draft = max_draft;
  params.drafts.offsets = draft_offsets.const_data_ptr<int32_t>();
  params.temperature = target_temperature.const_data_ptr<float>();
  params.sums = sums.mutable_data_ptr<float>();
  run(params, target_logits);
  return sums;
}

}  // namespace rdk::ops

RDK_REGISTER(sum_shard,
             "sum_shard(Tensor target_logits, Tensor draft_token_ids, Tensor draft_offsets, "
             "Tensor target_temperature, SymInt max_draft, SymInt first_chunk, "
             "SymInt target_size) -> Tensor sums")
