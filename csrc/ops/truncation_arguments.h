// The arguments that truncate a distribution (docs/design.md, "Truncation").
#pragma once

#include "checks.h"

namespace rdk::ops {

// Sums of masses, whole multiples of 2^-40 of at most 1, fit into 62 bits.
constexpr int64_t kMaxTruncatedColumns = int64_t{1} << 22;

inline Truncation truncation(const Checks& checks, int64_t columns, const Shape& needed,
                             const char* meaning, const std::optional<Tensor>& top_k,
                             const std::optional<Tensor>& top_p,
                             const std::optional<Tensor>& min_p) {
  Truncation limits{};
  limits.given = top_k.has_value() || top_p.has_value() || min_p.has_value();
  if (top_k) {
    checks.plain("top_k", *top_k, ScalarType::Int, needed, meaning);
    limits.top_k = top_k->const_data_ptr<int32_t>();
  }
  if (top_p) {
    checks.plain("top_p", *top_p, ScalarType::Float, needed, meaning);
    if (columns > kMaxTruncatedColumns) {
      checks.refuse("top_p", "truncates rows of " + std::to_string(columns) + " columns",
                    "at most " + std::to_string(kMaxTruncatedColumns));
    }
    limits.top_p = top_p->const_data_ptr<float>();
  }
  if (min_p) {
    checks.plain("min_p", *min_p, ScalarType::Float, needed, meaning);
    limits.min_p = min_p->const_data_ptr<float>();
  }
  return limits;
}

}  // namespace rdk::ops
