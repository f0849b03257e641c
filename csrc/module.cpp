// The Python module rdk_cuda._C. It registers the operators, says how it was built,
// which instruction set the CPU operators use, and which kernels there are. What starts these on a
// GPU, it takes from Python.

#include <Python.h>

#ifndef Py_LIMITED_API
#error "rdk_cuda._C is one binary for every Python from 3.10 on: build it with Py_LIMITED_API"
#endif

#include <exception>

#include "cpu/arithmetic.h"
#include "cuda/plan.h"
#include "ops/backend_python.h"
#include "ops/registration.h"

namespace {

PyObject* register_operators(PyObject*, PyObject* name_space) {
  PyObject* bytes = PyUnicode_AsUTF8String(name_space);
  const char* text = bytes == nullptr ? nullptr : PyBytes_AsString(bytes);
  const bool registered = text != nullptr && rdk_register(text);
  Py_XDECREF(bytes);
  if (text != nullptr && !registered) {
    PyErr_SetString(PyExc_ImportError, "torch refuses the operators; its message is above");
  }
  if (!registered) return nullptr;
  Py_RETURN_NONE;
}

PyObject* build_info(PyObject*, PyObject*) { return PyUnicode_FromString(RDK_BUILD_INFO); }

PyObject* cpu_capability(PyObject*, PyObject*) {
  return PyUnicode_FromString(rdk::cpu::arithmetic().name);
}

PyObject* kernels(PyObject*, PyObject*) {
  return PyUnicode_FromString(rdk::kernels_as_json().c_str());
}

PyObject* forget_environment(PyObject*, PyObject*) {
  rdk::forget_environment();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"register", register_operators, METH_O, "Registers the operators as torch.ops.NAMESPACE.*."},
    {"build_info", build_info, METH_NOARGS, "How the operators were built, as JSON."},
    {"cpu_capability", cpu_capability, METH_NOARGS, "The instruction set of the CPU operators."},
    {"kernels", kernels, METH_NOARGS, "The kernels of every operator, as JSON."},
    {"forget_environment", forget_environment, METH_NOARGS, "The next launch reads it anew."},
    {"set_starter", rdk::ops::set_starter, METH_O, "What starts kernels on a GPU, or None."},
    {"starter", rdk::ops::get_starter, METH_NOARGS, "What starts kernels on a GPU, or None."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// An instruction set that this machine lacks is refused here rather than by the first operator.
PyMODINIT_FUNC PyInit__C() {
  try {
    rdk::cpu::arithmetic();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  return PyModule_Create(&module);
}
