// torch.ops.rdk_emulated.*: the operators' own torch side over their CUDA kernels in the emulator.
// The tensors are ordinary CPU tensors.

#include <cstring>
#include <vector>

#include "emulation_binding.h"
#include "kernels/draft.h"
#include "kernels/gather_logits.h"
#include "kernels/redistribute.h"
#include "kernels/step_seeds.h"
#include "kernels/verify.h"
#include "ops/backend.h"

namespace rdk::ops {
namespace {

// Small, so that small inputs meet every strategy; a test sets its own.
Machine machine{4, 227 * 1024};

// Workspace is full of what the last use of its memory left there, NaN at worst.
template <typename Launch>
void emulate(const typename Launch::Params& params, void (*plan)(const Machine&, Launch*),
             void (*place)(void*, Launch*), cudaError_t (*start)(const Launch&, cudaStream_t)) {
  Launch launch{};
  launch.params = params;
  plan(machine, &launch);
  std::vector<unsigned char> workspace(launch.shape.workspace_bytes, 0xff);
  place(workspace.data(), &launch);
  std::memset(workspace.data(), 0, launch.shape.zeroed_bytes);
  const cudaError_t status = start(launch, nullptr);
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

}  // namespace

void run(const RedistributeParams& params, const Tensor&) {
  emulate(params, plan_redistribute, place_redistribute, launch_redistribute);
}

void run(const DraftParams& params, const Tensor&) {
  emulate(params, plan_draft, place_draft, launch_draft);
}

void run(const VerifyParams& params, const Tensor&) {
  emulate(params, plan_verify, place_verify, launch_verify);
}

void run(const GatherLogitsParams& params, const Tensor&) {
  emulate(params, plan_gather_logits, place_gather_logits, launch_gather_logits);
}

void run(const StepSeedsParams& params, const Tensor&) {
  emulate(params, plan_step_seeds, place_step_seeds, launch_step_seeds);
}

}  // namespace rdk::ops

PYBIND11_MODULE(rdk_emulated, module) {
  emulation::bind(module);
  module.def(
      "set_machine",
      [](int64_t multiprocessors, int64_t shared_bytes) {
        rdk::ops::machine = {multiprocessors, shared_bytes};
      },
      pybind11::arg("multiprocessors") = 4, pybind11::arg("shared_bytes") = 227 * 1024);
}
