// Launches an operator's kernel on the device and the current stream of its tensors.
#pragma once

#include "backend.h"

namespace rdk::ops {

void run_on_cuda(const RedistributeParams& params, const Tensor& on);
void run_on_cuda(const DraftParams& params, const Tensor& on);
void run_on_cuda(const VerifyParams& params, const Tensor& on);
void run_on_cuda(const GatherLogitsParams& params, const Tensor& on);
void run_on_cuda(const StepSeedsParams& params, const Tensor& on);

}  // namespace rdk::ops
