// The arguments that several operators take: the drafter's columns, and an affinity by target token
// or by drafter token. An Affinity was validated when it was built; its dtypes and shapes are
// checked here.
#pragma once

#include "checks.h"

namespace rdk::ops {

inline DraftColumns draft_columns(const Checks& checks, const Tensor& draft_logits, Dtype dtype,
                                  const std::optional<Tensor>& bias, int64_t target_size,
                                  const std::optional<Tensor>& dynamic_tokens,
                                  const std::optional<Tensor>& dynamic_logits) {
  DraftColumns columns{};
  columns.dtype = dtype;
  columns.logits = checks.rows("draft_logits", draft_logits);
  columns.draft_size = draft_logits.size(draft_logits.dim() - 1);
  columns.target_size = target_size;
  if (bias) {
    checks.plain("bias", *bias, ScalarType::Float, {columns.draft_size},
                 "[V_d], one for each column of draft_logits");
    columns.bias = bias->const_data_ptr<float>();
  }

  checks.together("dynamic_tokens", dynamic_tokens, "dynamic_logits", dynamic_logits);
  if (!dynamic_tokens) return columns;
  checks.device("dynamic_tokens", *dynamic_tokens);
  checks.dtype("dynamic_tokens", *dynamic_tokens, {ScalarType::Int});
  checks.device("dynamic_logits", *dynamic_logits);
  checks.dtype("dynamic_logits", *dynamic_logits, {draft_logits.scalar_type()});
  const int64_t width =
      dynamic_tokens->dim() > 0 ? dynamic_tokens->size(dynamic_tokens->dim() - 1) : 0;
  const Shape needed = leading_shape(draft_logits).followed_by(width);
  checks.shape("dynamic_tokens", *dynamic_tokens, needed,
               "[..., C], rows parallel to those of draft_logits");
  checks.shape("dynamic_logits", *dynamic_logits, needed, "[..., C], the shape of dynamic_tokens");
  if (width > 0) checks.columns("dynamic_tokens", *dynamic_tokens);
  columns.dynamic_size = width;
  columns.dynamic_tokens = checks.rows("dynamic_tokens", *dynamic_tokens);
  columns.dynamic_logits = checks.rows("dynamic_logits", *dynamic_logits);
  return columns;
}

// If a consistent affinity belongs to another drafter than the logits, the error names both widths.
// Tensors that disagree within an affinity are named by their own checks.
inline void same_width(const Checks& checks, int64_t draft_size, const std::optional<Tensor>& bias,
                       const Tensor& spread) {
  if (bias) checks.dimensions("bias", *bias, 1, "[V_d], one for each column of draft_logits");
  const int64_t tokens = spread.size(0);
  if (tokens != draft_size && (!bias || tokens == bias->size(0))) {
    checks.refuse("draft_logits", "has " + std::to_string(draft_size) + " columns",
                  std::to_string(tokens) +
                      ", the drafter tokens of this affinity; pass the logits of the drafter that "
                      "it was built for");
  }
}

// R, from spread, the first argument that has it.
inline int64_t affinity_rank(const Checks& checks, const Tensor& spread) {
  checks.dimensions("spread", spread, 2, "[V_d, R]");
  if (spread.size(1) > kMaxRank) {
    checks.refuse("spread", "has R = " + std::to_string(spread.size(1)) + " priors",
                  "at most " + std::to_string(kMaxRank));
  }
  return spread.size(1);
}

inline AffinityColumns affinity_columns(const Checks& checks, int64_t draft_size,
                                        const std::optional<Tensor>& bias,
                                        const Tensor& col_offsets, const Tensor& col_drafts,
                                        const Tensor& col_weights, const Tensor& spread,
                                        const Tensor& prior) {
  AffinityColumns columns{};
  columns.rank = affinity_rank(checks, spread);
  same_width(checks, draft_size, bias, spread);
  checks.dimensions("col_offsets", col_offsets, 1, "[V_t + 1]");
  columns.target_size = col_offsets.size(0) - 1;
  if (columns.target_size < 1) {
    checks.refuse("col_offsets", "has shape " + describe(shape_of(col_offsets)),
                  "[V_t + 1] with V_t at least 1");
  }
  checks.columns("col_offsets", col_offsets);
  checks.dimensions("col_drafts", col_drafts, 1, "[nnz]");
  columns.entries = col_drafts.size(0);
  const Shape entries = {columns.entries};
  checks.plain("col_offsets", col_offsets, ScalarType::Int, {columns.target_size + 1}, "[V_t + 1]");
  checks.plain("col_drafts", col_drafts, ScalarType::Int, entries, "[nnz]");
  checks.plain("col_weights", col_weights, ScalarType::Float, entries,
               "[nnz], as many as col_drafts");
  checks.plain("spread", spread, ScalarType::Float, {draft_size, columns.rank},
               "[V_d, R], a row for each column of draft_logits");
  checks.plain("prior", prior, ScalarType::Float, {columns.rank, columns.target_size},
               "[R, V_t], R as in spread and V_t as in col_offsets");
  columns.offsets = col_offsets.const_data_ptr<int32_t>();
  columns.drafts = col_drafts.const_data_ptr<int32_t>();
  columns.weights = col_weights.const_data_ptr<float>();
  columns.spread = spread.const_data_ptr<float>();
  columns.prior = prior.const_data_ptr<float>();
  return columns;
}

// Of an operator that evaluates q and has no gradient.
inline void no_gradient_of_columns(const Checks& checks, const std::optional<Tensor>& bias,
                                   const Tensor& col_weights, const Tensor& spread,
                                   const Tensor& prior,
                                   const std::optional<Tensor>& dynamic_logits) {
  if (bias) checks.no_gradient("bias", *bias);
  checks.no_gradient("col_weights", col_weights);
  checks.no_gradient("spread", spread);
  checks.no_gradient("prior", prior);
  if (dynamic_logits) checks.no_gradient("dynamic_logits", *dynamic_logits);
}

inline AffinityRows affinity_rows(const Checks& checks, int64_t draft_size,
                                  const std::optional<Tensor>& bias, const Tensor& row_offsets,
                                  const Tensor& row_targets, const Tensor& row_cdf,
                                  const Tensor& row_top, const Tensor& spread,
                                  const Tensor& spread_cdf, const Tensor& prior_cdf) {
  AffinityRows rows{};
  rows.rank = affinity_rank(checks, spread);
  same_width(checks, draft_size, bias, spread);
  checks.dimensions("row_targets", row_targets, 1, "[nnz]");
  checks.dimensions("prior_cdf", prior_cdf, 2, "[R, V_t]");
  rows.target_size = prior_cdf.size(1);
  if (rows.target_size < 1) {
    checks.refuse("prior_cdf", "has shape " + describe(shape_of(prior_cdf)),
                  "[R, V_t] with V_t at least 1");
  }
  checks.columns("prior_cdf", prior_cdf);
  const Shape entries = {row_targets.size(0)};
  checks.plain("row_offsets", row_offsets, ScalarType::Int, {draft_size + 1},
               "[V_d + 1], V_d columns in draft_logits");
  checks.plain("row_targets", row_targets, ScalarType::Int, entries, "[nnz]");
  checks.plain("row_cdf", row_cdf, ScalarType::Long, entries, "[nnz], as many as row_targets");
  checks.plain("row_top", row_top, ScalarType::Int, {draft_size},
               "[V_d], one for each column of draft_logits");
  checks.plain("spread", spread, ScalarType::Float, {draft_size, rows.rank},
               "[V_d, R], a row for each column of draft_logits");
  checks.plain("spread_cdf", spread_cdf, ScalarType::Long, {draft_size, rows.rank},
               "[V_d, R], the shape of spread");
  checks.plain("prior_cdf", prior_cdf, ScalarType::Long, {rows.rank, rows.target_size},
               "[R, V_t], R as in spread");
  rows.offsets = row_offsets.const_data_ptr<int32_t>();
  rows.targets = row_targets.const_data_ptr<int32_t>();
  rows.cdf = row_cdf.const_data_ptr<int64_t>();
  rows.top = row_top.const_data_ptr<int32_t>();
  rows.spread = spread.const_data_ptr<float>();
  rows.spread_cdf = spread_cdf.const_data_ptr<int64_t>();
  rows.prior_cdf = prior_cdf.const_data_ptr<int64_t>();
  return rows;
}

}  // namespace rdk::ops
