#include "backend.h"

#include <torch/csrc/stable/ops.h>

#include "../cpu/operators.h"

#if defined(RDK_WITH_CUDA)
#include "backend_cuda.h"
#endif

namespace rdk::ops {
namespace {

// The operators decide what is shared, so that the number of threads changes no bit of the result.
void run_on_threads(int64_t workers, const std::function<void()>& work) {
  torch::stable::parallel_for(0, workers, 1, [&](int64_t, int64_t) { work(); });
}

template <typename Params>
void run_on(const Params& params, const Tensor& on,
            void (*on_cpu)(const Params&, const cpu::Threads&)) {
#if defined(RDK_WITH_CUDA)
  if (on.is_cuda()) return run_on_cuda(params, on);
#else
  (void)on;
#endif
  on_cpu(params, {torch::stable::get_num_threads(), run_on_threads});
}

}  // namespace

void run(const RedistributeParams& params, const Tensor& on) {
  run_on(params, on, cpu::redistribute);
}

void run(const DraftParams& params, const Tensor& on) { run_on(params, on, cpu::draft); }

void run(const VerifyParams& params, const Tensor& on) { run_on(params, on, cpu::verify); }

void run(const GatherLogitsParams& params, const Tensor& on) {
  run_on(params, on, cpu::gather_logits);
}

void run(const StepSeedsParams& params, const Tensor& on) { run_on(params, on, cpu::step_seeds); }

}  // namespace rdk::ops
