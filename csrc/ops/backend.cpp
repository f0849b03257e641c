#include "backend.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "../cpu/operators.h"
#include "backend_python.h"
#include "compiled_starter.h"
#include "gpu_launch.h"

namespace rdk::ops {
namespace {

// A call by compiled kernels.
struct CompiledCall {
  const CompiledStarter& starter;
  const char* operator_name;
  int32_t device;

  Machine machine() const {
    Machine found = starter.machine(operator_name, device);
    found.early = found.early && environment().early_launches;
    return found;
  }

  template <typename Launch>
  void start(const Launch& launch, const Workspace&, void* memory) const {
    starter.start(operator_name, device, launch, memory, clears_tickets(launch.shape));
  }
};

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
    if (const CompiledStarter* compiled = compiled_starter()) {
      const CompiledCall call{*compiled, operator_name, device};
      return launch_on<Launch>(call, params, on);
    }
    const PythonStarter starter(operator_name, device);
    return launch_on<Launch>(starter, params, on);
  }
  on_cpu(params, {torch::stable::get_num_threads(), run_on_threads});
}

}  // namespace

#define RDK_OPERATOR(name, Name, NAME)                     \
  void run(const Name##Params& params, const Tensor& on) { \
    run_on<Name##Launch>(#name, params, on, cpu::name);    \
  }
#include "../operators.def"

}  // namespace rdk::ops
