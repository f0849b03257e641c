#include "backend.h"

#include <torch/csrc/stable/ops.h>

#include "../cpu/operators.h"

namespace rdk::ops {
namespace {

// Rows are independent, so the threads that share them do not change a bit of the result.
template <typename Params>
void run_on_cpu(void (*rows)(const Params&, int64_t, int64_t), const Params& params, int64_t count,
                int64_t count_per_thread) {
  torch::stable::parallel_for(0, count, count_per_thread,
                              [&](int64_t begin, int64_t end) { rows(params, begin, end); });
}

}  // namespace

void run(const RedistributeParams& params, const Tensor&) {
  run_on_cpu(cpu::redistribute, params, params.rows, 1);
}

void run(const DraftParams& params, const Tensor&) {
  run_on_cpu(cpu::draft, params, params.rows, 1);
}

void run(const VerifyParams& params, const Tensor&) {
  run_on_cpu(cpu::verify, params, params.sequences, 1);
}

void run(const GatherLogitsParams& params, const Tensor&) {
  run_on_cpu(cpu::gather_logits, params, params.rows * params.tokens_per_row, 32);
}

void run(const StepSeedsParams& params, const Tensor&) {
  run_on_cpu(cpu::step_seeds, params, params.count, 4096);
}

}  // namespace rdk::ops
