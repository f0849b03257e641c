#include "backend.h"
#include "draft_arguments.h"
#include "registration.h"
#include "target_arguments.h"
#include "truncation_arguments.h"

namespace rdk::ops {

// The drafter's side is given whole or not at all; bias, stats and dynamic columns only with it.
bool has_drafter(const Checks& checks,
                 std::initializer_list<std::pair<const char*, const std::optional<Tensor>&>> needed,
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
    const Tensor& target_logits, const Tensor& tree_token_ids, const Tensor& parents,
    const Tensor& tree_offsets, const Tensor& temperature, const Tensor& step_keys,
    const Tensor& positions, int64_t max_depth, const std::optional<Tensor>& top_k,
    const std::optional<Tensor>& top_p, const std::optional<Tensor>& min_p,
    const std::optional<Tensor>& allowed, const std::optional<Tensor>& draft_logits,
    const std::optional<Tensor>& draft_stats, const std::optional<Tensor>& draft_rows,
    const std::optional<Tensor>& draft_temperature, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& col_offsets, const std::optional<Tensor>& col_drafts,
    const std::optional<Tensor>& col_weights, const std::optional<Tensor>& spread,
    const std::optional<Tensor>& prior, const std::optional<Tensor>& dynamic_tokens,
    const std::optional<Tensor>& dynamic_logits, int64_t method) {
  const Checks checks("verify_tree", "target_logits", target_logits);
  VerifyTreeParams params{};
  params.target.dtype = checks.logits("target_logits", target_logits);
  checks.dimensions("target_logits", target_logits, 2, "[N + B, V_t], packed");
  params.target.size = target_logits.size(1);
  params.sequences.count = count_sequences(checks, "tree_offsets", tree_offsets);
  params.drafts.token_ids = drafted_ids(checks, "tree_token_ids", tree_token_ids);
  params.drafts.count = tree_token_ids.size(0);
  params.affinity.target_size = params.target.size;
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
  const int64_t needed_rows = params.drafts.count + params.sequences.count;
  check_target(checks, target_logits, needed_rows, params.affinity.target_size);
  params.target.logits = checks.rows("target_logits", target_logits);
  checks.plain("parents", parents, ScalarType::Int, {params.drafts.count},
               "[N], one for each of tree_token_ids");
  check_longest(checks, "max_depth", max_depth);
  params.max_draft = max_depth;

  const Shape per_sequence = {params.sequences.count};
  checks.plain("temperature", temperature, ScalarType::Float, per_sequence, kPerSequence);
  checks.plain("step_keys", step_keys, ScalarType::Long, per_sequence, kPerSequence);
  checks.plain("positions", positions, ScalarType::Long, per_sequence, kPerSequence);
  params.sequences.truncation =
      truncation(checks, params.target.size, per_sequence, kPerSequence, top_k, top_p, min_p);
  if (allowed) {
    params.target.allowed = allowed_rows(checks, *allowed, needed_rows, params.target.size);
  }
  const Tensor tokens =
      empty(target_logits, Shape{params.sequences.count, max_depth + 1}, ScalarType::Long);
  const Tensor num_accepted = empty(target_logits, per_sequence, ScalarType::Int);
  const Tensor path =
      empty(target_logits, Shape{params.sequences.count, max_depth}, ScalarType::Int);

  params.parents = parents.const_data_ptr<int32_t>();
  params.drafts.offsets = tree_offsets.const_data_ptr<int32_t>();
  params.sequences.temperature = temperature.const_data_ptr<float>();
  params.sequences.step_keys = step_keys.const_data_ptr<int64_t>();
  params.sequences.positions = positions.const_data_ptr<int64_t>();
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  params.num_accepted = num_accepted.mutable_data_ptr<int32_t>();
  params.path = path.mutable_data_ptr<int32_t>();
  run(params, target_logits);
  return {tokens, num_accepted, path};
}

}  // namespace rdk::ops

RDK_REGISTER(verify_tree,
             "verify_tree(Tensor target_logits, Tensor tree_token_ids, Tensor parents, "
             "Tensor tree_offsets, Tensor temperature, Tensor step_keys, Tensor positions, "
             "SymInt max_depth, "
             "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, Tensor? allowed=None, "
             "Tensor? draft_logits=None, Tensor? draft_stats=None, Tensor? draft_rows=None, "
             "Tensor? draft_temperature=None, Tensor? bias=None, Tensor? col_offsets=None, "
             "Tensor? col_drafts=None, Tensor? col_weights=None, Tensor? spread=None, "
             "Tensor? prior=None, Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
             "int method=0) "
             "-> (Tensor tokens, Tensor num_accepted, Tensor path)")
