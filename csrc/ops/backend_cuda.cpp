// The module rdk_cuda._cuda: the kernels that nvcc has compiled, and what starts them. It is built
// without torch's libraries, and finds the one symbol that it needs of them once it is loaded.

#include <Python.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

#include "../cuda/start.h"
#include "compiled_starter.h"

namespace rdk::ops {
namespace {

using CurrentStream = int32_t (*)(int32_t device, void** stream);

// Of torch's CUDA library, which `import torch` has loaded. Null: this torch has none.
CurrentStream find_current_stream() {
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* symbol =
      library == nullptr ? nullptr : dlsym(library, "aoti_torch_get_current_cuda_stream");
  return reinterpret_cast<CurrentStream>(symbol);
}

void check(const char* operator_name, cudaError_t status, const LaunchShape& shape) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("rdk::") + operator_name + ": launching " +
                           std::to_string(shape.blocks) + " blocks of " +
                           std::to_string(shape.threads) + " threads with " +
                           std::to_string(shape.shared_bytes) +
                           " bytes of shared memory failed: " + cudaGetErrorString(status));
}

// Whether kernels are compiled for compute capability 9.0 or later, from which on launches have
// clusters and may be early. Asked once for each device.
bool has_code_of_9_0(const char* operator_name, int32_t device) {
  static std::array<std::atomic<int>, 64> known{};  // 0: not yet
  std::atomic<int>* kept = device < 64 ? &known[device] : nullptr;
  int compiled = kept != nullptr ? kept->load() : 0;
  if (compiled == 0) check(operator_name, compiled_for(&compiled), {});
  if (kept != nullptr) *kept = compiled;
  return compiled >= 90;
}

class CudaStarter final : public CompiledStarter {
 public:
  explicit CudaStarter(CurrentStream current_stream) : current_stream_(current_stream) {}

  Machine machine(const char* operator_name, int32_t device) const override {
    int multiprocessors = 0;
    int shared_bytes = 0;
    check(operator_name,
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), {});
    check(operator_name,
          cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          {});
    const bool has_attributes = has_code_of_9_0(operator_name, device);
    return {multiprocessors, shared_bytes, has_attributes ? kMostCluster : 1, has_attributes};
  }

#define RDK_OPERATOR(name, Name, NAME)                                              \
  void start(const char* operator_name, int32_t device, const Name##Launch& launch, \
             void* workspace, bool clear) const override {                          \
    start_on_stream(operator_name, device, launch, workspace, clear);               \
  }
#include "../operators.def"

 private:
  template <typename Launch>
  void start_on_stream(const char* operator_name, int32_t device, const Launch& launch,
                       void* workspace, bool clear) const {
    void* current = nullptr;
    if (current_stream_(device, &current) != 0) {
      throw std::runtime_error(std::string("rdk::") + operator_name +
                               ": torch has no stream of cuda:" + std::to_string(device));
    }
    const auto stream = static_cast<cudaStream_t>(current);
    const LaunchShape& shape = launch.shape;
    if (clear) {
      check(operator_name, cudaMemsetAsync(workspace, 0, shape.ticket_bytes, stream), shape);
    }
    check(operator_name, rdk::start(launch, stream), shape);
  }

  CurrentStream current_stream_;
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cuda", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace rdk::ops

PyMODINIT_FUNC PyInit__cuda() {
  const auto current_stream = rdk::ops::find_current_stream();
  if (current_stream == nullptr) {
    PyErr_SetString(PyExc_ImportError, "this torch has no CUDA");
    return nullptr;
  }
  static const rdk::ops::CudaStarter starter(current_stream);
  // As the base, which is what it is taken out as.
  const rdk::ops::CompiledStarter* handed_over = &starter;
  PyObject* capsule = PyCapsule_New(const_cast<rdk::ops::CompiledStarter*>(handed_over),
                                    rdk::ops::kCompiledStarter, nullptr);
  PyObject* made = capsule == nullptr ? nullptr : PyModule_Create(&rdk::ops::module);
  if (made == nullptr ||
      PyCapsule_SetContext(capsule, reinterpret_cast<void*>(rdk::ops::launch_layout())) != 0 ||
      PyModule_AddObject(made, "starter", capsule) != 0) {
    Py_XDECREF(capsule);
    Py_XDECREF(made);
    return nullptr;
  }
  return made;
}
