// The arguments that operators which verify have in common: packed drafts, and the target's rows.
#pragma once

#include <limits>

#include "checks.h"

namespace rdk::ops {

// Of drafts or branches.
inline void check_longest(const Checks& checks, const char* name, int64_t longest) {
  if (longest < 0 || longest >= std::numeric_limits<int32_t>::max()) {
    checks.refuse(name, "is " + std::to_string(longest), "0 or more, below 2^31 - 1");
  }
}

// B, from the offsets.
inline int64_t count_sequences(const Checks& checks, const char* name, const Tensor& offsets) {
  checks.dimensions(name, offsets, 1, "[B + 1]");
  if (offsets.size(0) < 1) {
    checks.refuse(name, "has shape [0]", "[B + 1], so at least one entry");
  }
  const int64_t sequences = offsets.size(0) - 1;
  checks.plain(name, offsets, ScalarType::Int, {sequences + 1}, "[B + 1]");
  return sequences;
}

inline TokenIds drafted_ids(const Checks& checks, const char* name, const Tensor& ids) {
  checks.dimensions(name, ids, 1, "[N], packed");
  checks.integers(name, ids, shape_of(ids), "[N], packed");
  return token_ids(ids);
}

inline Method verification_method(const Checks& checks, int64_t method) {
  if (method < 0 || method > 1) {
    checks.refuse("method", "is " + std::to_string(method), "0, by token, or 1, by block");
  }
  return static_cast<Method>(method);
}

inline void check_target_rows(const Checks& checks, const Tensor& target_logits,
                              int64_t needed_rows) {
  if (target_logits.size(0) < needed_rows) {
    checks.refuse("target_logits", "has " + std::to_string(target_logits.size(0)) + " rows",
                  "at least N + B = " + std::to_string(needed_rows) +
                      ": one for each drafted token and one more for each sequence");
  }
}

inline void check_target(const Checks& checks, const Tensor& target_logits, int64_t needed_rows,
                         int64_t target_size) {
  checks.dimensions("target_logits", target_logits, 2, "[N + B, V_t], packed");
  if (target_logits.size(1) != target_size) {
    checks.refuse("target_logits", "has shape " + describe(shape_of(target_logits)),
                  std::to_string(target_size) + " columns, the V_t of col_offsets");
  }
  check_target_rows(checks, target_logits, needed_rows);
}

// One bit for each token, in rows parallel to those of the logits.
inline Rows allowed_rows(const Checks& checks, const Tensor& allowed, int64_t needed_rows,
                         int64_t target_size) {
  checks.device("allowed", allowed);
  checks.dtype("allowed", allowed, {ScalarType::Int});
  checks.dimensions("allowed", allowed, 2, "[N + B, ceil(V_t / 32)], one bit for each token");
  const int64_t words = (target_size + 31) / 32;
  if (allowed.size(1) != words) {
    checks.refuse("allowed", "has shape " + describe(shape_of(allowed)),
                  std::to_string(words) + " columns, 32 of the " + std::to_string(target_size) +
                      " tokens in each");
  }
  if (allowed.size(0) < needed_rows) {
    checks.refuse(
        "allowed", "has " + std::to_string(allowed.size(0)) + " rows",
        "at least N + B = " + std::to_string(needed_rows) + ", parallel to those of target_logits");
  }
  return checks.rows("allowed", allowed);
}

}  // namespace rdk::ops
