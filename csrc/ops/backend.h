// Runs an operator, whose arguments are checked and outputs allocated, on the device of its
// tensors.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "../params.h"

namespace rdk::ops {

using torch::stable::Tensor;

// on: any tensor of the call; its device is that of all.
#define RDK_OPERATOR(name, Name, NAME) void run(const Name##Params& params, const Tensor& on);
#include "../operators.def"

}  // namespace rdk::ops
