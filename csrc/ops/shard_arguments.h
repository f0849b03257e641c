// The arguments of operators on a rank's columns of the target.
#pragma once

#include <algorithm>

#include "target_arguments.h"

namespace rdk::ops {

// What a rank has of rows of `target_size` columns.
inline Shard take_shard(const Checks& checks, const Tensor& target_logits, int64_t needed_rows,
                        int64_t first_chunk, int64_t target_size, TargetRows* target) {
  if (first_chunk < 0 || first_chunk > kMaxColumns / kChunk) {
    checks.refuse("first_chunk", "is " + std::to_string(first_chunk), "0 to 2^18");
  }
  checks.dimensions("target_logits", target_logits, 2, "[N + B, W], packed");
  check_target_rows(checks, target_logits, needed_rows);
  const int64_t columns = target_logits.size(1);
  target->size = std::clamp<int64_t>(target_size - first_chunk * kChunk, 0, columns);
  target->logits = checks.rows("target_logits", target_logits);
  return {first_chunk, (columns + kChunk - 1) / kChunk};
}

}  // namespace rdk::ops
