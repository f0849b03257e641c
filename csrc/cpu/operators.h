// The CPU operators: each computes rows (or sequences) [begin, end) of its output, so that the
// caller decides the threads.
#pragma once

#include "../params.h"

namespace rdk::cpu {

void redistribute(const RedistributeParams& params, int64_t begin, int64_t end);
void draft(const DraftParams& params, int64_t begin, int64_t end);
void verify(const VerifyParams& params, int64_t begin, int64_t end);
void gather_logits(const GatherLogitsParams& params, int64_t begin, int64_t end);
void step_seeds(const StepSeedsParams& params, int64_t begin, int64_t end);

}  // namespace rdk::cpu
