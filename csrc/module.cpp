// The Python module rdk_cuda._C. Importing it registers the operators; it tells how it was built.

#include <Python.h>

#ifndef Py_LIMITED_API
#error "rdk_cuda._C is one binary for every Python from 3.10 on: build it with Py_LIMITED_API"
#endif

namespace {

PyObject* build_info(PyObject*, PyObject*) { return PyUnicode_FromString(RDK_BUILD_INFO); }

PyMethodDef methods[] = {
    {"build_info", build_info, METH_NOARGS, "How the operators were built, as JSON."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
