// Gives a pybind11 module what a test needs of the emulator:
//   configure(seed=0, shuffle=True, block_order="shuffled", resident=1)
//                      how the next launches are scheduled; so many blocks take turns
//   EmulationError     what a launch raises
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "cuda_emulation.h"

namespace emulation {

inline BlockOrder block_order_of(const std::string& name) {
  if (name == "shuffled") return BlockOrder::kShuffled;
  if (name == "forward") return BlockOrder::kForward;
  if (name == "reverse") return BlockOrder::kReverse;
  throw pybind11::value_error("block_order is '" + name +
                              "'; it must be shuffled, forward or reverse");
}

inline void bind(pybind11::module_& module) {
  // Local, because several modules with an emulator of their own live in one process.
  pybind11::register_local_exception<Error>(module, "EmulationError", PyExc_RuntimeError);
  module.def(
      "configure",
      [](uint64_t seed, bool shuffle, const std::string& block_order, unsigned resident) {
        options = {seed, shuffle, block_order_of(block_order), resident};
      },
      pybind11::arg("seed") = 0, pybind11::arg("shuffle") = true,
      pybind11::arg("block_order") = "shuffled", pybind11::arg("resident") = 1);
}

}  // namespace emulation
