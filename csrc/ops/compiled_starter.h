// Starts kernels that nvcc has compiled. They are in a library of their own, rdk_cuda._cuda, which
// is loaded only where torch has CUDA, so that one build of the operators serves every torch.
#pragma once

#include <cstdint>

#include "../cuda/plan.h"

namespace rdk::ops {

class CompiledStarter {
 public:
  // operator_name: for errors. device is the current one. Machine::early: whether it can.
  virtual Machine machine(const char* operator_name, int32_t device) const = 0;

  // Starts the kernel on the device's current stream, behind a memset of the tickets if clear.
#define RDK_OPERATOR(name, Name, NAME)                                                      \
  virtual void start(const char* operator_name, int32_t device, const Name##Launch& launch, \
                     void* workspace, bool clear) const = 0;
#include "../operators.def"

 protected:
  ~CompiledStarter() = default;
};

// The capsule in which _cuda hands its starter to _C. Both must agree on every struct of a launch.
constexpr const char* kCompiledStarter = "rdk_cuda._cuda.starter";

constexpr uintptr_t launch_layout() {
  uintptr_t layout = 0;
#define RDK_OPERATOR(name, Name, NAME) layout = 31 * layout + sizeof(Name##Launch);
#include "../operators.def"
  return layout;
}

}  // namespace rdk::ops
