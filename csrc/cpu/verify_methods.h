// How a step's drafts are judged: one by one, or together (DESIGN section 2, "Verification", "Block
// verification").
#pragma once

#include "verify_step.h"

namespace rdk::cpu {

struct Decided {
  int64_t accepted;  // the drafts before this one
  int64_t token;     // what follows them; -1: the target's row there has no distribution
};

Decided verify_by_token(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output);

// The longest accepted prefix.
Decided verify_by_block(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                        VerifyOutput* output);

inline Decided decide(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                      VerifyOutput* output) {
  const bool by_block = step.params().method == Method::kBlock && !step.greedy();
  return (by_block ? verify_by_block : verify_by_token)(step, threads, scratch, output);
}

}  // namespace rdk::cpu
