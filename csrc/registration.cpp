// The schemas of torch.ops.rdk.*, the one description of their arguments: fake kernels read it, and
// tests hold the type stub and docs/design.md to it.

#include <torch/csrc/stable/library.h>

#include "ops/operators.h"

// The emulated tests register the same operators under a name of their own.
#ifndef RDK_NAMESPACE
#define RDK_NAMESPACE rdk
#endif
#define RDK_LIBRARY(name, m) STABLE_TORCH_LIBRARY(name, m)
#define RDK_LIBRARY_IMPL(name, key, m) STABLE_TORCH_LIBRARY_IMPL(name, key, m)

RDK_LIBRARY(RDK_NAMESPACE, m) {
  m.def(
      "redistribute(Tensor draft_logits, Tensor temperature, "
      "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, "
      "Tensor spread, Tensor prior, Tensor row_top, "
      "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
      "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None) -> Tensor probs");
  m.def(
      "draft(Tensor draft_logits, Tensor temperature, Tensor step_keys, Tensor positions, "
      "Tensor? bias, Tensor row_offsets, Tensor row_targets, Tensor row_cdf, Tensor row_top, "
      "Tensor spread, Tensor spread_cdf, Tensor prior_cdf, "
      "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
      "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None) "
      "-> (Tensor tokens, Tensor stats)");
  m.def(
      "verify(Tensor target_logits, Tensor draft_logits, Tensor? draft_stats, "
      "Tensor? draft_rows, Tensor draft_token_ids, Tensor draft_offsets, "
      "Tensor target_temperature, Tensor draft_temperature, Tensor step_keys, Tensor positions, "
      "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, "
      "Tensor spread, Tensor prior, SymInt max_draft, "
      "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None, "
      "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, "
      "Tensor? allowed=None, int logprobs=0, int method=0) "
      "-> (Tensor tokens, Tensor num_accepted, Tensor logprobs)");
  m.def(
      "verify_tree(Tensor target_logits, Tensor tree_token_ids, Tensor parents, "
      "Tensor tree_offsets, Tensor temperature, Tensor step_keys, Tensor positions, "
      "SymInt max_depth, "
      "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None, Tensor? allowed=None) "
      "-> (Tensor tokens, Tensor num_accepted, Tensor path)");
  m.def(
      "gather_logits(Tensor hidden, Tensor weight, Tensor tokens, Tensor? bias=None) "
      "-> Tensor logits");
  m.def("step_keys(Tensor seeds, Tensor positions) -> Tensor step_keys");
}

// One implementation serves both: ops/backend.h tells CPU from CUDA.
void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("redistribute", TORCH_BOX(&rdk::ops::redistribute));
  m.impl("draft", TORCH_BOX(&rdk::ops::draft));
  m.impl("verify", TORCH_BOX(&rdk::ops::verify));
  m.impl("verify_tree", TORCH_BOX(&rdk::ops::verify_tree));
  m.impl("gather_logits", TORCH_BOX(&rdk::ops::gather_logits));
  m.impl("step_keys", TORCH_BOX(&rdk::ops::step_keys));
}

RDK_LIBRARY_IMPL(RDK_NAMESPACE, CPU, m) { implement(m); }
RDK_LIBRARY_IMPL(RDK_NAMESPACE, CUDA, m) { implement(m); }
