// verify by block: the longest accepted prefix of a step's drafts (DESIGN section 2, "Block
// verification").
#pragma once

#include "verify_step.h"

namespace rdk::cpu {

void verify_by_block(const VerifyStep& step, const Threads& threads, VerifyScratch* scratch,
                     VerifyOutput* output);

}  // namespace rdk::cpu
