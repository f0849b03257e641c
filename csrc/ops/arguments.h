// The arguments that several operators take. An Affinity was validated when it was built; its
// dtypes and shapes are checked here.
#pragma once

#include <limits>

#include "checks.h"

namespace rdk::ops {

// ------------------------------------------------------------------------- the drafter's side

inline DraftColumns draft_columns(const Checks& checks, Given draft_logits, Dtype dtype, Maybe bias,
                                  int64_t target_size, Maybe dynamic_tokens, Maybe dynamic_logits) {
  DraftColumns columns{};
  columns.dtype = dtype;
  columns.logits = checks.rows("draft_logits", draft_logits);
  columns.draft_size = width_of(draft_logits);
  columns.target_size = target_size;
  columns.bias = checks.data<float>("bias", bias, {columns.draft_size},
                                    "[V_d], one for each column of draft_logits");
  checks.together("dynamic_tokens", dynamic_tokens, "dynamic_logits", dynamic_logits);
  if (!dynamic_tokens) return columns;
  checks.device("dynamic_tokens", *dynamic_tokens);
  checks.dtype("dynamic_tokens", *dynamic_tokens, {ScalarType::Int});
  checks.device("dynamic_logits", *dynamic_logits);
  checks.dtype("dynamic_logits", *dynamic_logits, {draft_logits.scalar_type()});
  const int64_t width = width_of(*dynamic_tokens);
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
inline void same_width(const Checks& checks, int64_t draft_size, Maybe bias, Given spread) {
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
inline int64_t affinity_rank(const Checks& checks, Given spread) {
  checks.dimensions("spread", spread, 2, "[V_d, R]");
  if (spread.size(1) > kMaxRank) {
    checks.refuse("spread", "has R = " + std::to_string(spread.size(1)) + " priors",
                  "at most " + std::to_string(kMaxRank));
  }
  return spread.size(1);
}

constexpr const char* kSpread = "[V_d, R], a row for each column of draft_logits";

// The drafter's columns and the affinity by target token.
template <typename Params>
void take_columns(const Checks& checks, Given draft_logits, Maybe bias, Given col_offsets,
                  Given col_drafts, Given col_weights, Given spread, Given prior,
                  Maybe dynamic_tokens, Maybe dynamic_logits, Params* params) {
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const int64_t draft_size = width_of(draft_logits);
  AffinityColumns& columns = params->affinity;
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
  columns.offsets =
      checks.data<int32_t>("col_offsets", col_offsets, {columns.target_size + 1}, "[V_t + 1]");
  columns.drafts = checks.data<int32_t>("col_drafts", col_drafts, {columns.entries}, "[nnz]");
  columns.weights = checks.data<float>("col_weights", col_weights, {columns.entries},
                                       "[nnz], as many as col_drafts");
  columns.spread = checks.data<float>("spread", spread, {draft_size, columns.rank}, kSpread);
  columns.prior = checks.data<float>("prior", prior, {columns.rank, columns.target_size},
                                     "[R, V_t], R as in spread and V_t as in col_offsets");
  params->draft = draft_columns(checks, draft_logits, dtype, bias, columns.target_size,
                                dynamic_tokens, dynamic_logits);
}

// Of an operator that evaluates q and has no gradient.
inline void no_gradient_of_columns(const Checks& checks, Maybe bias, Given col_weights,
                                   Given spread, Given prior, Maybe dynamic_logits) {
  checks.no_gradient("bias", bias);
  checks.no_gradient("col_weights", col_weights);
  checks.no_gradient("spread", spread);
  checks.no_gradient("prior", prior);
  checks.no_gradient("dynamic_logits", dynamic_logits);
}

// The same with the affinity by drafter token.
template <typename Params>
void take_rows(const Checks& checks, Given draft_logits, Maybe bias, Given row_offsets,
               Given row_targets, Given row_cdf, Given row_top, Given spread, Given spread_cdf,
               Given prior_cdf, Maybe dynamic_tokens, Maybe dynamic_logits, Params* params) {
  const Dtype dtype = checks.logits("draft_logits", draft_logits);
  const int64_t draft_size = width_of(draft_logits);
  AffinityRows& rows = params->affinity;
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
  const Shape spreads = {draft_size, rows.rank};
  rows.offsets = checks.data<int32_t>("row_offsets", row_offsets, {draft_size + 1},
                                      "[V_d + 1], V_d columns in draft_logits");
  rows.targets = checks.data<int32_t>("row_targets", row_targets, entries, "[nnz]");
  rows.cdf = checks.data<int64_t>("row_cdf", row_cdf, entries, "[nnz], as many as row_targets");
  rows.top = checks.data<int32_t>("row_top", row_top, {draft_size},
                                  "[V_d], one for each column of draft_logits");
  rows.spread = checks.data<float>("spread", spread, spreads, kSpread);
  rows.spread_cdf =
      checks.data<int64_t>("spread_cdf", spread_cdf, spreads, "[V_d, R], the shape of spread");
  rows.prior_cdf = checks.data<int64_t>("prior_cdf", prior_cdf, {rows.rank, rows.target_size},
                                        "[R, V_t], R as in spread");
  params->draft = draft_columns(checks, draft_logits, dtype, bias, rows.target_size, dynamic_tokens,
                                dynamic_logits);
}

// Which columns are kept (docs/design.md, "Truncation").
inline Truncation truncation(const Checks& checks, int64_t columns, const Shape& needed,
                             const char* meaning, Maybe top_k, Maybe top_p, Maybe min_p) {
  // Sums of masses, whole multiples of 2^-40 of at most 1, fit into 62 bits.
  constexpr int64_t kMaxTruncatedColumns = int64_t{1} << 22;
  Truncation limits{};
  limits.given = top_k || top_p || min_p;
  limits.top_k = checks.data<int32_t>("top_k", top_k, needed, meaning);
  limits.top_p = checks.data<float>("top_p", top_p, needed, meaning);
  if (top_p && columns > kMaxTruncatedColumns) {
    checks.refuse("top_p", "truncates rows of " + std::to_string(columns) + " columns",
                  "at most " + std::to_string(kMaxTruncatedColumns));
  }
  limits.min_p = checks.data<float>("min_p", min_p, needed, meaning);
  return limits;
}

// --------------------------------------------------------------------------------- to verify

// Fills what params has of the drafter, whose drafts are counted already. How many dimensions its
// logits have is checked by the caller.
inline void take_drafter(const Checks& checks, Given draft_logits, Maybe draft_stats,
                         Maybe draft_rows, Given draft_temperature, Maybe bias, Given col_offsets,
                         Given col_drafts, Given col_weights, Given spread, Given prior,
                         Maybe dynamic_tokens, Maybe dynamic_logits, const char* per_sequence,
                         const char* per_draft, VerifyParams* params) {
  take_columns(checks, draft_logits, bias, col_offsets, col_drafts, col_weights, spread, prior,
               dynamic_tokens, dynamic_logits, params);
  const Shape leading = leading_shape(draft_logits);
  DraftRows& rows = params->draft_rows;
  rows.available = leading.product();
  rows.temperature = checks.data<float>("draft_temperature", draft_temperature,
                                        {params->sequences.count}, per_sequence);
  if (draft_stats) {
    const int64_t width = 2 + params->affinity.rank;
    checks.present("draft_stats", *draft_stats);
    const int64_t last = draft_stats->dim() - 1;
    const bool truncated = last >= 0 && draft_stats->size(last) == width + 1;
    rows.stats_width = truncated ? width + 1 : width;
    rows.stats = checks.data<float>(
        "draft_stats", *draft_stats, leading.followed_by(rows.stats_width),
        "the leading shape of draft_logits and 2 + R, or 3 + R of truncated drafts, as draft "
        "returns it for these rows");
  }
  rows.index = checks.data<int32_t>("draft_rows", draft_rows, {params->drafts.count}, per_draft);
}

// What each sequence has of its own; its temperature is called by one name or another.
inline void take_sequences(const Checks& checks, const char* temperature_name, Given temperature,
                           Given step_keys, Given positions, const char* per_sequence,
                           Sequences* sequences) {
  const Shape each = {sequences->count};
  sequences->temperature = checks.data<float>(temperature_name, temperature, each, per_sequence);
  sequences->step_keys = checks.data<int64_t>("step_keys", step_keys, each, per_sequence);
  sequences->positions = checks.data<int64_t>("positions", positions, each, per_sequence);
}

// Of drafts or branches.
inline int64_t longest(const Checks& checks, const char* name, int64_t given) {
  if (given < 0 || given >= std::numeric_limits<int32_t>::max()) {
    checks.refuse(name, "is " + std::to_string(given), "0 or more, below 2^31 - 1");
  }
  return given;
}

// Sets B, from the offsets.
inline const int32_t* take_offsets(const Checks& checks, const char* name, Given offsets,
                                   int64_t* sequences) {
  checks.dimensions(name, offsets, 1, "[B + 1]");
  if (offsets.size(0) < 1) {
    checks.refuse(name, "has shape [0]", "[B + 1], so at least one entry");
  }
  *sequences = offsets.size(0) - 1;
  return checks.data<int32_t>(name, offsets, {*sequences + 1}, "[B + 1]");
}

// Packed drafts, and how many sequences they belong to.
inline void take_packed(const Checks& checks, const char* ids_name, Given ids,
                        const char* offsets_name, Given offsets, Proposed* drafts,
                        int64_t* sequences) {
  drafts->offsets = take_offsets(checks, offsets_name, offsets, sequences);
  checks.dimensions(ids_name, ids, 1, "[N], packed");
  drafts->token_ids = checks.integers(ids_name, ids, shape_of(ids), "[N], packed");
  drafts->count = ids.size(0);
}

inline Method verification_method(const Checks& checks, int64_t method) {
  if (method < 0 || method > 1) {
    checks.refuse("method", "is " + std::to_string(method), "0, by token, or 1, by block");
  }
  return static_cast<Method>(method);
}

inline void check_target_rows(const Checks& checks, Given target_logits, int64_t needed_rows) {
  if (target_logits.size(0) < needed_rows) {
    checks.refuse("target_logits", "has " + std::to_string(target_logits.size(0)) + " rows",
                  "at least N + B = " + std::to_string(needed_rows) +
                      ": one for each drafted token and one more for each sequence");
  }
}

// The target's packed rows, and the bits of the tokens that each allows, in rows parallel to them.
inline void take_target(const Checks& checks, Given target_logits, Maybe allowed,
                        VerifyParams* params) {
  const int64_t target_size = params->affinity.target_size;
  const int64_t needed_rows = params->drafts.count + params->sequences.count;
  checks.dimensions("target_logits", target_logits, 2, "[N + B, V_t], packed");
  if (target_logits.size(1) != target_size) {
    checks.refuse("target_logits", "has shape " + describe(shape_of(target_logits)),
                  std::to_string(target_size) + " columns, the V_t of col_offsets");
  }
  check_target_rows(checks, target_logits, needed_rows);
  params->target.size = target_size;
  params->target.logits = checks.rows("target_logits", target_logits);
  if (!allowed) return;
  checks.device("allowed", *allowed);
  checks.dtype("allowed", *allowed, {ScalarType::Int});
  checks.dimensions("allowed", *allowed, 2, "[N + B, ceil(V_t / 32)], one bit for each token");
  const int64_t words = (target_size + 31) / 32;
  if (allowed->size(1) != words) {
    checks.refuse("allowed", "has shape " + describe(shape_of(*allowed)),
                  std::to_string(words) + " columns, 32 of the " + std::to_string(target_size) +
                      " tokens in each");
  }
  if (allowed->size(0) < needed_rows) {
    checks.refuse(
        "allowed", "has " + std::to_string(allowed->size(0)) + " rows",
        "at least N + B = " + std::to_string(needed_rows) + ", parallel to those of target_logits");
  }
  params->target.allowed = checks.rows("allowed", *allowed);
}

// What a rank has of packed rows of `target_size` columns.
inline Shard take_shard(const Checks& checks, Given target_logits, int64_t needed_rows,
                        int64_t first_chunk, int64_t target_size, TargetRows* target) {
  if (first_chunk < 0 || first_chunk > kMaxColumns / kChunk) {
    checks.refuse("first_chunk", "is " + std::to_string(first_chunk), "0 to 2^18");
  }
  checks.dimensions("target_logits", target_logits, 2, "[N + B, W], packed");
  check_target_rows(checks, target_logits, needed_rows);
  const int64_t columns = target_logits.size(1);
  target->size = std::clamp<int64_t>(target_size - first_chunk * kChunk, 0, columns);
  target->logits = checks.rows("target_logits", target_logits);
  return {first_chunk, chunks_of(columns)};
}

}  // namespace rdk::ops
