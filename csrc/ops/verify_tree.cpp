#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

// The drafter's side is given whole or not at all; bias, stats and dynamic columns only with it.
bool has_drafter(const Checks& checks, std::initializer_list<std::pair<const char*, Maybe>> needed,
                 std::initializer_list<const std::optional<Tensor>*> others) {
  bool any = false;
  for (const auto& each : needed) any = any || each.second.has_value();
  for (const auto* each : others) any = any || each->has_value();
  for (const auto& [name, tensor] : needed) {
    if (any && !tensor) {
      checks.refuse(name, "is missing",
                    "to be given with the rest of the drafter's side: draft_logits, draft_rows, "
                    "draft_temperature and the affinity's tensors; pass all or none of them");
    }
  }
  return any;
}

std::tuple<Tensor, Tensor, Tensor> verify_tree(
    Given target_logits, Given tree_token_ids, Given parents, Given tree_offsets, Given temperature,
    Given step_keys, Given positions, int64_t max_depth, Maybe top_k, Maybe top_p, Maybe min_p,
    Maybe allowed, Maybe draft_logits, Maybe draft_stats, Maybe draft_rows, Maybe draft_temperature,
    Maybe bias, Maybe col_offsets, Maybe col_drafts, Maybe col_weights, Maybe spread, Maybe prior,
    Maybe dynamic_tokens, Maybe dynamic_logits, int64_t method) {
  const Checks checks("verify_tree", "target_logits", target_logits);
  VerifyTreeParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  checks.dimensions("target_logits", target_logits, 2, "[N + B, V_t], packed");
  take_packed(checks, "tree_token_ids", tree_token_ids, "tree_offsets", tree_offsets,
              &params.drafts, &params.sequences.count);
  params.affinity.target_size = target_logits.size(1);
  constexpr const char* kPerSequence = "[B], one for each sequence of tree_offsets";
  if (has_drafter(checks,
                  {{"draft_logits", draft_logits},
                   {"draft_rows", draft_rows},
                   {"draft_temperature", draft_temperature},
                   {"col_offsets", col_offsets},
                   {"col_drafts", col_drafts},
                   {"col_weights", col_weights},
                   {"spread", spread},
                   {"prior", prior}},
                  {&draft_stats, &bias, &dynamic_tokens, &dynamic_logits})) {
    checks.dimensions("draft_logits", *draft_logits, 2, "[M, V_d]");
    take_drafter(checks, *draft_logits, draft_stats, draft_rows, *draft_temperature, bias,
                 *col_offsets, *col_drafts, *col_weights, *spread, *prior, dynamic_tokens,
                 dynamic_logits, kPerSequence, "[N], one for each of tree_token_ids", &params);
  }
  params.method = verification_method(checks, method);
  take_target(checks, target_logits, allowed, &params);
  params.parents = checks.data<int32_t>("parents", parents, {params.drafts.count},
                                        "[N], one for each of tree_token_ids");
  params.max_draft = longest(checks, "max_depth", max_depth);
  take_sequences(checks, "temperature", temperature, step_keys, positions, kPerSequence,
                 &params.sequences);
  const int64_t count = params.sequences.count;
  params.sequences.truncation =
      truncation(checks, params.target.size, {count}, kPerSequence, top_k, top_p, min_p);
  const Tensor tokens = output(target_logits, {count, max_depth + 1}, &params.tokens);
  const Tensor num_accepted = output(target_logits, {count}, &params.num_accepted);
  const Tensor path = output(target_logits, {count, max_depth}, &params.path);
  run(params, target_logits);
  return {tokens, num_accepted, path};
}

}  // namespace rdk::ops

RDK_REGISTER(verify_tree,
             "verify_tree(Tensor target_logits, Tensor tree_token_ids, Tensor parents, "
             "Tensor tree_offsets, Tensor temperature, Tensor step_keys, Tensor positions, "
             "SymInt max_depth, " RDK_LIMITS
             ", Tensor? allowed=None, "
             "Tensor? draft_logits=None, Tensor? draft_stats=None, Tensor? draft_rows=None, "
             "Tensor? draft_temperature=None, Tensor? bias=None, Tensor? col_offsets=None, "
             "Tensor? col_drafts=None, Tensor? col_weights=None, Tensor? spread=None, "
             "Tensor? prior=None, " RDK_DYNAMIC
             ", int method=0) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor path)")
