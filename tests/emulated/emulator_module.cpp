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

SoftmaxParams softmax_params(const Array<float>& logits, Array<float>& probs) {
  return {logits.data(), probs.mutable_data(), static_cast<int>(logits.shape(1))};
}

void softmax(const Array<float>& logits, Array<float> probs, int threads, bool all_barriers) {
  launch_softmax(softmax_params(logits, probs), static_cast<int>(logits.shape(0)), threads,
                 all_barriers);
}

void shared_softmax(const Array<float>& logits, Array<float> probs, bool all_barriers) {
  launch_shared_softmax(softmax_params(logits, probs), static_cast<int>(logits.shape(0)),
                        all_barriers);
}

void reduction(const Array<int>& values, Array<int> partials, Array<unsigned> ticket,
               Array<int> sum, int blocks, int threads, Publication publication) {
  launch_reduction({values.data(), partials.mutable_data(), ticket.mutable_data(),
                    sum.mutable_data(), static_cast<int>(values.size()), publication},
                   blocks, threads);
}

void misuse(Misuse misuse, Array<float> out, int blocks, int threads, size_t dynamic_bytes,
            int allowed_bytes) {
  launch_misuse({misuse, out.mutable_data()}, blocks, threads, dynamic_bytes, allowed_bytes);
}

void order(Array<unsigned> order) {
  unsigned counter = 0;
  launch_order({&counter, order.mutable_data()}, static_cast<int>(order.shape(0)),
               static_cast<int>(order.shape(1)));
}

void primitives(Array<unsigned> out) {
  launch_primitives({out.mutable_data()}, static_cast<int>(out.shape(1)));
}

}  // namespace

PYBIND11_MODULE(emulator_kernels, module) {
  emulation::bind(module);
  py::enum_<Publication> publications(module, "Publication", py::module_local());
#define BIND(name) publications.value(#name, Publication::name)
  EMULATOR_PUBLICATIONS(BIND);
#undef BIND
  py::enum_<Misuse> misuses(module, "Misuse", py::module_local());
#define BIND(name) misuses.value(#name, Misuse::name)
  EMULATOR_MISUSES(BIND);
  module.def("softmax", &softmax);
  module.def("shared_softmax", &shared_softmax);
  module.def("reduction", &reduction);
  module.def("misuse", &misuse, py::arg("misuse"), py::arg("out"), py::arg("blocks"),
             py::arg("threads"), py::arg("dynamic_bytes"), py::arg("allowed_bytes") = 0);
  module.def("use_device", &emulation::use_device);
  module.def("order", &order);
  module.def("primitives", &primitives);
  module.def("live_guards", &live_guards);
}
