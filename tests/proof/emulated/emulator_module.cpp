// emulator_kernels.cu for Python. Arrays are numpy's and are written in place.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "emulation_binding.h"
#include "emulator_kernels.h"
#include "kernel_attributes.h"

namespace py = pybind11;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

void misuse(Misuse misuse, Array<float> out, int blocks, int threads, size_t dynamic_bytes,
            int allowed_bytes) {
  launch_misuse({misuse, out.mutable_data()}, blocks, threads, dynamic_bytes, allowed_bytes);
}

void primitives(Array<unsigned> out) {
  launch_primitives({out.mutable_data()}, static_cast<int>(out.shape(1)));
}

void exchange(Array<float> out, int cluster) {
  launch_exchange({out.mutable_data()}, static_cast<int>(out.shape(0)), cluster);
}

}  // namespace

PYBIND11_MODULE(emulator_kernels, module) {
  emulation::bind(module);
  py::enum_<Misuse> misuses(module, "Misuse", py::module_local());
#define BIND(name) misuses.value(#name, Misuse::name)
  EMULATOR_MISUSES(BIND);
#undef BIND
  module.def("misuse", &misuse, py::arg("misuse"), py::arg("out"), py::arg("blocks"),
             py::arg("threads"), py::arg("dynamic_bytes"), py::arg("allowed_bytes") = 0);
  module.def("use_device", &emulation::use_device);
  module.def("primitives", &primitives);
  module.def("exchange", &exchange);
}
