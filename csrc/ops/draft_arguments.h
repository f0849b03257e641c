// What drafts were drawn from, as operators that verify take it: the drafter's rows, and an
// affinity by target token.
#pragma once

#include "affinity_arguments.h"

namespace rdk::ops {

// Fills what params has of the drafter, whose drafts are counted already. How many dimensions its
// logits have is checked by the caller.
inline void take_drafter(const Checks& checks, const Tensor& draft_logits,
                         const std::optional<Tensor>& draft_stats,
                         const std::optional<Tensor>& draft_rows, const Tensor& draft_temperature,
                         const std::optional<Tensor>& bias, const Tensor& col_offsets,
                         const Tensor& col_drafts, const Tensor& col_weights, const Tensor& spread,
                         const Tensor& prior, const std::optional<Tensor>& dynamic_tokens,
                         const std::optional<Tensor>& dynamic_logits, const char* per_sequence,
                         const char* per_draft, VerifyParams* params) {
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const Shape leading = leading_shape(draft_logits);
  const int64_t draft_size = draft_logits.size(draft_logits.dim() - 1);
  DraftRows& rows = params->draft_rows;
  rows.available = leading.product();
  params->affinity = affinity_columns(checks, draft_size, bias, col_offsets, col_drafts,
                                      col_weights, spread, prior);
  params->draft = draft_columns(checks, draft_logits, dtype, bias, params->affinity.target_size,
                                dynamic_tokens, dynamic_logits);
  checks.plain("draft_temperature", draft_temperature, ScalarType::Float, {params->sequences.count},
               per_sequence);
  rows.temperature = draft_temperature.const_data_ptr<float>();
  if (draft_stats) {
    const int64_t width = 2 + params->affinity.rank;
    checks.present("draft_stats", *draft_stats);
    const int64_t last = draft_stats->dim() - 1;
    const bool truncated = last >= 0 && draft_stats->size(last) == width + 1;
    rows.stats_width = truncated ? width + 1 : width;
    checks.plain("draft_stats", *draft_stats, ScalarType::Float,
                 leading.followed_by(rows.stats_width),
                 "the leading shape of draft_logits and 2 + R, or 3 + R of truncated drafts, as "
                 "draft returns it for these rows");
    rows.stats = draft_stats->const_data_ptr<float>();
  }
  if (draft_rows) {
    checks.plain("draft_rows", *draft_rows, ScalarType::Int, {params->drafts.count}, per_draft);
    rows.index = draft_rows->const_data_ptr<int32_t>();
  }
}

}  // namespace rdk::ops
