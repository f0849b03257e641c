// torch.ops.rdk_emulated.*: the operators' own torch side over their CUDA kernels in the emulator.
// The tensors are ordinary CPU tensors. After start_through_python, kernels are started as where
// the module has none of its own.

#include "ops/backend_python.h"  // Python.h comes first

#include <cstring>
#include <string>
#include <string_view>

#include "cuda/start.h"
#include "emulation_binding.h"
#include "kernel_attributes.h"
#include "ops/backend.h"
#include "ops/gpu_launch.h"
#include "plan_binding.h"

namespace rdk::ops {
namespace {

// Small, so that small inputs meet every strategy; a test sets its own.
Machine machine{4, 227 * 1024, 1, true};

bool python_starts = false;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Workspace is full of what the last use of its memory left there, NaN at worst.
struct EmulatorStarter {
  Machine machine() const { return rdk::ops::machine; }

  template <typename Launch>
  void start(const Launch& launch, void* workspace) const {
    std::memset(workspace, 0xff, launch.shape.workspace_bytes);
    std::memset(workspace, 0, launch.shape.zeroed_bytes);
    check(rdk::start(launch, nullptr));
  }
};

template <typename Launch>
void run_on(const char* operator_name, const typename Launch::Params& params, const Tensor& on) {
  if (python_starts) {
    PythonStarter starter(operator_name, on.get_device_index());
    launch_on<Launch>(starter, params, on);
  } else {
    EmulatorStarter starter;
    launch_on<Launch>(starter, params, on);
  }
}

// What a GPU does: the kernel of this name, in blocks as told, takes the bytes by value.
template <typename Launch>
void start_bytes(const std::string& kernel, int64_t blocks, int64_t threads, int64_t shared_bytes,
                 const std::string& bytes) {
  if (bytes.size() != sizeof(Launch)) throw std::runtime_error("a launch of another size");
  Launch launch;
  std::memcpy(&launch, bytes.data(), bytes.size());
  if (kernel != kernel_name(launch)) throw std::runtime_error("another kernel than " + kernel);
  launch.shape = {blocks, threads, shared_bytes, 0, 0, launch.shape.allowed_bytes, 1, 0};
  check(rdk::start(launch, nullptr));
}

void start_named(const std::string& kernel, int64_t blocks, int64_t threads, int64_t shared_bytes,
                 const std::string& launch) {
  const std::string_view operator_name(kernel.data(), kernel.find("_kernel"));
#define RDK_OPERATOR(name, Name, NAME) \
  if (operator_name == #name)          \
    start_bytes<Name##Launch>(kernel, blocks, threads, shared_bytes, launch);
#include "operators.def"
}

}  // namespace

#define RDK_OPERATOR(name, Name, NAME)                     \
  void run(const Name##Params& params, const Tensor& on) { \
    run_on<Name##Launch>(#name, params, on);               \
  }
#include "operators.def"

}  // namespace rdk::ops

PYBIND11_MODULE(rdk_emulated, module) {
  using namespace rdk::ops;
  emulation::bind(module);
  emulation::bind_plans(module);
  module.def(
      "set_machine",
      [](int64_t multiprocessors, int64_t shared_bytes, int64_t cluster) {
        machine = {multiprocessors, shared_bytes, cluster, true};
        emulation::use_device(shared_bytes);
      },
      pybind11::arg("multiprocessors") = 4, pybind11::arg("shared_bytes") = 227 * 1024,
      pybind11::arg("cluster") = 1);
  // By a callable of "set" or "launch", the kernel and bytes; None ends it.
  module.def("watch_shared_memory", [](const pybind11::object& callable) {
    if (callable.is_none()) return emulation::watch_shared_memory(nullptr);
    // Kept for good: the last copy could go away in a thread without the GIL.
    const pybind11::handle kept = pybind11::object(callable).release();
    emulation::watch_shared_memory(
        [kept](const char* what, const std::string& kernel, int64_t bytes) {
          const pybind11::gil_scoped_acquire gil;
          kept(what, kernel, bytes);
        });
  });
  module.def("start_through_python", [](bool through_python) { python_starts = through_python; });
  module.def("set_starter",
             [](const pybind11::object& starter) { set_starter(nullptr, starter.ptr()); });
  module.def("start", [](const std::string& kernel, int64_t blocks, int64_t threads,
                         int64_t shared_bytes, const pybind11::bytes& launch) {
    start_named(kernel, blocks, threads, shared_bytes, launch);
  });
}
