// The Python module rdk_cuda._C. Importing it registers the operators; it tells how it was built,
// and which instruction set the CPU operators run.

#include <Python.h>

#ifndef Py_LIMITED_API
#error "rdk_cuda._C is one binary for every Python from 3.10 on: build it with Py_LIMITED_API"
#endif

#include <exception>

#include "cpu/arithmetic.h"

namespace {

PyObject* build_info(PyObject*, PyObject*) { return PyUnicode_FromString(RDK_BUILD_INFO); }

PyObject* cpu_capability(PyObject*, PyObject*) {
  return PyUnicode_FromString(rdk::cpu::arithmetic().name);
}

PyMethodDef methods[] = {
    {"build_info", build_info, METH_NOARGS, "How the operators were built, as JSON."},
    {"cpu_capability", cpu_capability, METH_NOARGS, "The instruction set of the CPU operators."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// An instruction set that cannot be had is refused here rather than by the first operator.
PyMODINIT_FUNC PyInit__C() {
  try {
    rdk::cpu::arithmetic();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  return PyModule_Create(&module);
}
