// The CPU operators. The caller brings the threads.
#pragma once

#include "../params.h"
#include "threads.h"

namespace rdk::cpu {

void redistribute(const RedistributeParams& params, const Threads& threads);
void draft(const DraftParams& params, const Threads& threads);
void verify(const VerifyParams& params, const Threads& threads);
void verify_tree(const VerifyTreeParams& params, const Threads& threads);
void gather_logits(const GatherLogitsParams& params, const Threads& threads);
void step_keys(const StepKeysParams& params, const Threads& threads);

}  // namespace rdk::cpu
