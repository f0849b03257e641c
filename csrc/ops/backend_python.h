// The starter of kernels that Python has set: that of rdk_cuda._cuda, or a Python object such as
// that of rdk_cuda.integrations.cupy, which compiles them at run time. Each call of the latter
// takes the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

#include "../cuda/plan.h"
#include "compiled_starter.h"

namespace rdk::ops {

class PythonStarter {
 public:
  // device is the current one. Throws an error that names the operator if no starter is installed.
  PythonStarter(const char* operator_name, int32_t device);

  Machine machine() const;

  template <typename Launch>
  void start(const Launch& launch, const Workspace&, void*) const {
    start(kernel_name(launch), launch.shape, &launch, sizeof(Launch));
  }

 private:
  void start(const char* kernel, const LaunchShape& shape, const void* launch,
             size_t launch_bytes) const;

  const char* operator_name_;
  int32_t device_;
};

// Of rdk_cuda._cuda; null where it is not loaded.
const CompiledStarter* compiled_starter();

// For the Python module: set_starter(starter), or None to remove it; and starter(). It is the
// capsule of rdk_cuda._cuda, which stays, or an object that has
//   machine(device) -> (multiprocessors, bytes of shared memory that a block may have at most)
//   start(kernel, blocks, threads, shared_bytes, allowed_bytes, launch, launch_bytes, device)
// If allowed_bytes is not 0, the kernel must first be allowed so much dynamic shared memory. launch
// is the address of the kernel's argument, which it takes by value. It starts on the device's
// current stream.
PyObject* set_starter(PyObject* module, PyObject* starter);
PyObject* get_starter(PyObject* module, PyObject* nothing);

}  // namespace rdk::ops
