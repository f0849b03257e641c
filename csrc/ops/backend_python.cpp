#include "backend_python.h"

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace rdk::ops {
namespace {

PyObject* installed = nullptr;  // guarded by the GIL
std::atomic<const CompiledStarter*> compiled{nullptr};

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Owns a reference; may be null. The GIL is held.
class Reference {
 public:
  explicit Reference(PyObject* object) : object_(object) {}
  ~Reference() { Py_XDECREF(object_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

std::string utf8(PyObject* text) {
  const Reference bytes(text == nullptr ? nullptr : PyUnicode_AsUTF8String(text));
  const char* characters = bytes.get() == nullptr ? nullptr : PyBytes_AsString(bytes.get());
  return characters == nullptr ? "(no text)" : characters;
}

// Throws the pending Python exception, its type and text, as a C++ one.
[[noreturn]] void rethrow(const char* operator_name) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Reference owned_type(type), owned_value(value), owned_traceback(traceback);
  const Reference name(PyObject_GetAttrString(type, "__name__"));
  const Reference text(PyObject_Str(value));
  const std::string what =
      std::string("rdk::") + operator_name + ": " + utf8(name.get()) + ": " + utf8(text.get());
  PyErr_Clear();
  // Ctrl-C must still end the program: Python raises it again when the operator has returned.
  if (PyErr_GivenExceptionMatches(type, PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
  throw std::runtime_error(what);
}

}  // namespace

PythonStarter::PythonStarter(const char* operator_name, int32_t device)
    : operator_name_(operator_name), device_(device) {
  const Gil gil;
  if (installed == nullptr) {
    throw std::runtime_error(
        std::string("rdk::") + operator_name +
        ": the tensors are on a CUDA device, but rdk_cuda has no CUDA operators "
        "(rdk_cuda.build_info()[\"cuda_reason\"] says why). Build it with a torch that has CUDA "
        "and "
        "nvcc, or, without a compiler, `pip install rdk_cuda[cupy]` and call "
        "rdk_cuda.integrations.cupy.enable()");
  }
}

Machine PythonStarter::machine() const {
  const Gil gil;
  const Reference facts(PyObject_CallMethod(installed, "machine", "i", device_));
  long long multiprocessors = 0;
  long long shared_bytes = 0;
  if (facts.get() == nullptr ||
      !PyArg_ParseTuple(facts.get(), "LL:machine", &multiprocessors, &shared_bytes)) {
    rethrow(operator_name_);
  }
  return {multiprocessors, shared_bytes, 1, false};  // CuPy's launches have no attributes
}

void PythonStarter::start(const char* kernel, const LaunchShape& shape, const void* launch,
                          size_t launch_bytes) const {
  const Gil gil;
  const Reference result(PyObject_CallMethod(
      installed, "start", "sLLLLKKi", kernel, static_cast<long long>(shape.blocks),
      static_cast<long long>(shape.threads), static_cast<long long>(shape.shared_bytes),
      static_cast<long long>(shape.allowed_bytes),
      static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(launch)),
      static_cast<unsigned long long>(launch_bytes), device_));
  if (result.get() == nullptr) rethrow(operator_name_);
}

const CompiledStarter* compiled_starter() { return compiled.load(std::memory_order_acquire); }

PyObject* set_starter(PyObject*, PyObject* starter) {
  if (PyCapsule_IsValid(starter, kCompiledStarter)) {
    if (reinterpret_cast<uintptr_t>(PyCapsule_GetContext(starter)) != launch_layout()) {
      PyErr_SetString(PyExc_ImportError, "it was built from other sources than rdk_cuda._C");
      return nullptr;
    }
    compiled.store(
        static_cast<const CompiledStarter*>(PyCapsule_GetPointer(starter, kCompiledStarter)),
        std::memory_order_release);
  }
  PyObject* before = installed;
  installed = starter == Py_None ? nullptr : starter;
  Py_XINCREF(installed);
  Py_XDECREF(before);  // last, as it may run anything
  Py_RETURN_NONE;
}

PyObject* get_starter(PyObject*, PyObject*) {
  PyObject* found = installed == nullptr ? Py_None : installed;
  Py_INCREF(found);
  return found;
}

}  // namespace rdk::ops
