// torch.ops.rdk_emulated.*: the operators' own torch side over their CUDA kernels in the emulator.
// The tensors are ordinary CPU tensors. After start_through_python, kernels are started as where
// the module has none of its own.

#include "ops/backend_python.h"  // Python.h comes first

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/start.h"
#include "emulation_binding.h"
#include "kernel_attributes.h"
#include "ops/backend.h"
#include "ops/gpu_launch.h"
#include "ops/registration.h"
#include "plan_binding.h"

namespace rdk::ops {
namespace {

// Small, so that small inputs meet every strategy; a test sets its own.
Machine machine{4, 227 * 1024, 1, true};

bool python_starts = false;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

template <typename Launch>
int64_t tickets_of(const Launch& launch) {
  return launch.shape.ticket_bytes / 8;
}
// What follows them counts what is drawn of passes, and is opened by whoever may post one.
int64_t tickets_of(const VerifyLaunch& launch) {
  return launch.splits > 1 ? launch.params.sequences.count : 0;
}

// A ticket that has been taken would be found by a graph's next replay.
template <typename Launch>
void require_no_ticket(const Launch& launch, const void* workspace) {
  const auto* words = static_cast<const uint64_t*>(workspace);
  for (int64_t i = 0; i < tickets_of(launch); ++i) {
    const uint64_t count = words[i] ^ launch.shape.stamp;
    if (0 < count && count <= 0xffff) throw std::runtime_error("a ticket is left in the workspace");
  }
}

// A launch finds in its workspace what the last use of that memory left there: NaN at worst, zeros,
// or, below 0, what the last launch did.
int filled_with = 0xff;
std::vector<unsigned char> kept;
std::function<void()> replay;  // the last launch again, as a graph does it
std::mutex mutex;              // of the two above: operators are called by several threads, too

struct EmulatorStarter {
  Machine machine() const { return rdk::ops::machine; }

  template <typename Launch>
  void start(const Launch& launch, const Workspace& workspace, void* memory) const {
    const int64_t bytes = workspace.bytes();
    if (filled_with < 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      kept.resize(std::max<size_t>(kept.size(), bytes), 0xff);
      workspace.place(memory = kept.data());
    } else {
      std::memset(memory, filled_with, bytes);
    }
    const auto launched = [launch, memory] {
      check(rdk::start(launch, nullptr));
      require_no_ticket(launch, memory);
    };
    {
      const std::lock_guard<std::mutex> lock(mutex);
      replay = launched;
    }
    launched();
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
  launch.shape.blocks = blocks;
  launch.shape.threads = threads;
  launch.shape.shared_bytes = shared_bytes;
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
  rdk_register("rdk_emulated");
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
  module.def("fill_workspace", [](int byte) { filled_with = byte; });
  module.def("replay", [] { replay(); });
  module.def("next_stamp", next_stamp);
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
