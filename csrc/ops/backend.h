// Runs an operator, whose arguments are checked and outputs allocated, on the device of its
// tensors.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "../params.h"

namespace rdk::ops {

using torch::stable::Tensor;

// on: any tensor of the call; its device is that of all.
void run(const RedistributeParams& params, const Tensor& on);
void run(const DraftParams& params, const Tensor& on);
void run(const VerifyParams& params, const Tensor& on);
void run(const VerifyTreeParams& params, const Tensor& on);
void run(const GatherLogitsParams& params, const Tensor& on);
void run(const StepKeysParams& params, const Tensor& on);

}  // namespace rdk::ops
