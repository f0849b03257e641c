// Starts the kernels that the module is linked with: compiled by nvcc, or run by the emulator.
#pragma once

#if defined(RDK_EMULATED)
#include "cuda_emulation.h"
#else
#include <cuda_runtime.h>
#endif

#include "draft.h"
#include "gather_logits.h"
#include "redistribute.h"
#include "step_keys.h"
#include "verify.h"
#include "verify_tree.h"

namespace rdk {

// The compute capability, such as 90, that the kernels on the current device were compiled for: an
// earlier one than the device's where its driver has translated them.
cudaError_t compiled_for(int* capability);

cudaError_t start(const DraftLaunch& launch, cudaStream_t stream);
cudaError_t start(const GatherLogitsLaunch& launch, cudaStream_t stream);
cudaError_t start(const RedistributeLaunch& launch, cudaStream_t stream);
cudaError_t start(const StepKeysLaunch& launch, cudaStream_t stream);
cudaError_t start(const VerifyLaunch& launch, cudaStream_t stream);
cudaError_t start(const VerifyTreeLaunch& launch, cudaStream_t stream);

}  // namespace rdk
