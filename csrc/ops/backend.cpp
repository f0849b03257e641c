#include "backend.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "../cpu/operators.h"
#include "gpu_launch.h"

#if defined(RDK_WITH_CUDA)
#include "backend_cuda.h"
#else
#include "backend_python.h"
#endif

namespace rdk::ops {
namespace {

#if defined(RDK_WITH_CUDA)
using GpuStarter = CudaStarter;
#else
using GpuStarter = PythonStarter;
#endif

// Operators share the work themselves, so that the number of threads changes no bit of the result.
void run_on_threads(int64_t workers, const std::function<void()>& work) {
  torch::stable::parallel_for(0, workers, 1, [&](int64_t, int64_t) { work(); });
}

template <typename Launch>
void run_on(const char* operator_name, const typename Launch::Params& params, const Tensor& on,
            void (*on_cpu)(const typename Launch::Params&, const cpu::Threads&)) {
  if (on.is_cuda()) {
    const auto device = on.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    GpuStarter starter(operator_name, device);
    return launch_on<Launch>(starter, params, on);
  }
  on_cpu(params, {torch::stable::get_num_threads(), run_on_threads});
}

}  // namespace

void run(const RedistributeParams& params, const Tensor& on) {
  run_on<RedistributeLaunch>("redistribute", params, on, cpu::redistribute);
}

void run(const DraftParams& params, const Tensor& on) {
  run_on<DraftLaunch>("draft", params, on, cpu::draft);
}

void run(const VerifyParams& params, const Tensor& on) {
  run_on<VerifyLaunch>("verify", params, on, cpu::verify);
}

void run(const VerifyTreeParams& params, const Tensor& on) {
  run_on<VerifyTreeLaunch>("verify_tree", params, on, cpu::verify_tree);
}

void run(const GatherLogitsParams& params, const Tensor& on) {
  run_on<GatherLogitsLaunch>("gather_logits", params, on, cpu::gather_logits);
}

void run(const StepKeysParams& params, const Tensor& on) {
  run_on<StepKeysLaunch>("step_keys", params, on, cpu::step_keys);
}

}  // namespace rdk::ops
