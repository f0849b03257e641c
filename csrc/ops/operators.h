// The operators as torch calls them. Schemas are in registration.cpp, semantics in docs/design.md.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace rdk::ops {

using torch::stable::Tensor;

Tensor redistribute(const Tensor& draft_logits, const Tensor& temperature,
                    const std::optional<Tensor>& bias, const Tensor& col_offsets,
                    const Tensor& col_drafts, const Tensor& col_weights, const Tensor& spread,
                    const Tensor& prior, const Tensor& row_top,
                    const std::optional<Tensor>& dynamic_tokens,
                    const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& top_k,
                    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p);

std::tuple<Tensor, Tensor> draft(
    const Tensor& draft_logits, const Tensor& temperature, const Tensor& step_keys,
    const Tensor& positions, const std::optional<Tensor>& bias, const Tensor& row_offsets,
    const Tensor& row_targets, const Tensor& row_cdf, const Tensor& row_top, const Tensor& spread,
    const Tensor& spread_cdf, const Tensor& prior_cdf, const std::optional<Tensor>& dynamic_tokens,
    const std::optional<Tensor>& dynamic_logits, const std::optional<Tensor>& top_k,
    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p);

std::tuple<Tensor, Tensor, Tensor> verify(
    const Tensor& target_logits, const Tensor& draft_logits,
    const std::optional<Tensor>& draft_stats, const std::optional<Tensor>& draft_rows,
    const Tensor& draft_token_ids, const Tensor& draft_offsets, const Tensor& target_temperature,
    const Tensor& draft_temperature, const Tensor& step_keys, const Tensor& positions,
    const std::optional<Tensor>& bias, const Tensor& col_offsets, const Tensor& col_drafts,
    const Tensor& col_weights, const Tensor& spread, const Tensor& prior, int64_t max_draft,
    const std::optional<Tensor>& dynamic_tokens, const std::optional<Tensor>& dynamic_logits,
    const std::optional<Tensor>& top_k, const std::optional<Tensor>& top_p,
    const std::optional<Tensor>& min_p, const std::optional<Tensor>& allowed, int64_t logprobs,
    int64_t method);

std::tuple<Tensor, Tensor, Tensor> verify_tree(
    const Tensor& target_logits, const Tensor& tree_token_ids, const Tensor& parents,
    const Tensor& tree_offsets, const Tensor& temperature, const Tensor& step_keys,
    const Tensor& positions, int64_t max_depth, const std::optional<Tensor>& top_k,
    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p,
    const std::optional<Tensor>& allowed);

Tensor gather_logits(const Tensor& hidden, const Tensor& weight, const Tensor& tokens,
                     const std::optional<Tensor>& bias);

Tensor step_keys(const Tensor& seeds, const Tensor& positions);

}  // namespace rdk::ops
