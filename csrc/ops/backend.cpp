#include "backend.h"

#include <torch/csrc/stable/ops.h>

#include "../cpu/operators.h"

#if defined(RDK_WITH_CUDA)
#include "backend_cuda.h"
#endif

namespace rdk::ops {
namespace {

// Rows are independent, so the threads that share them do not change a bit of the result.
template <typename Params>
void run_rows(const Params& params, const Tensor& on,
              void (*on_cpu)(const Params&, int64_t, int64_t), int64_t count,
              int64_t count_per_thread) {
#if defined(RDK_WITH_CUDA)
  if (on.is_cuda()) return run_on_cuda(params, on);
#else
  (void)on;
#endif
  torch::stable::parallel_for(0, count, count_per_thread,
                              [&](int64_t begin, int64_t end) { on_cpu(params, begin, end); });
}

}  // namespace

void run(const RedistributeParams& params, const Tensor& on) {
  run_rows(params, on, cpu::redistribute, params.rows, 1);
}

void run(const DraftParams& params, const Tensor& on) {
  run_rows(params, on, cpu::draft, params.rows, 1);
}

void run(const VerifyParams& params, const Tensor& on) {
  run_rows(params, on, cpu::verify, params.sequences, 1);
}

void run(const GatherLogitsParams& params, const Tensor& on) {
  run_rows(params, on, cpu::gather_logits, params.rows * params.tokens_per_row, 32);
}

void run(const StepSeedsParams& params, const Tensor& on) {
  run_rows(params, on, cpu::step_seeds, params.count, 4096);
}

}  // namespace rdk::ops
