// How an operator becomes torch.ops.rdk.*.
#pragma once

#include <torch/csrc/stable/library.h>

// The emulated tests register the same operators under a name of their own.
#ifndef RDK_NAMESPACE
#define RDK_NAMESPACE rdk
#endif

// The schema is the one description of the arguments of rdk::ops::name, as torch reads it. One
// implementation serves both devices: backend.h tells CPU from CUDA.
#define RDK_REGISTER(name, schema)                                               \
  STABLE_TORCH_LIBRARY_FRAGMENT(RDK_NAMESPACE, library) { library.def(schema); } \
  STABLE_TORCH_LIBRARY_IMPL(RDK_NAMESPACE, CPU, library) {                       \
    library.impl(#name, TORCH_BOX(&rdk::ops::name));                             \
  }                                                                              \
  STABLE_TORCH_LIBRARY_IMPL(RDK_NAMESPACE, CUDA, library) {                      \
    library.impl(#name, TORCH_BOX(&rdk::ops::name));                             \
  }
