// How an operator becomes torch.ops.rdk.*.
#pragma once

#include <torch/csrc/stable/library.h>

namespace rdk::ops {

struct Listed {
  const char* name;
  const char* schema;  // the one description of the arguments of rdk::ops::name, as torch reads it
  void (*boxed)(StableIValue*, uint64_t, uint64_t);  // serves both devices: see backend.h
};

bool list_operator(const Listed& listed);

}  // namespace rdk::ops

// Arguments that several schemas have.
#define RDK_COLUMNS                                                           \
  "Tensor? bias, Tensor col_offsets, Tensor col_drafts, Tensor col_weights, " \
  "Tensor spread, Tensor prior"
#define RDK_ROWS                                                                           \
  "Tensor? bias, Tensor row_offsets, Tensor row_targets, Tensor row_cdf, Tensor row_top, " \
  "Tensor spread, Tensor spread_cdf, Tensor prior_cdf"
#define RDK_DYNAMIC "Tensor? dynamic_tokens=None, Tensor? dynamic_logits=None"
#define RDK_LIMITS "Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None"

#define RDK_REGISTER(name, schema)     \
  static const bool name##_is_listed = \
      rdk::ops::list_operator({#name, schema, TORCH_BOX(&rdk::ops::name)});

// Registers all operators of this library as torch.ops.NAME_SPACE.*. Whoever has loaded the library
// calls it, once: two copies may be in one process, as long as they take two names. Returns false
// where torch refuses, and has printed why.
extern "C" __attribute__((visibility("default"))) bool rdk_register(const char* name_space);
