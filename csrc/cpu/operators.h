// The CPU operators. The caller brings the threads.
#pragma once

#include "../params.h"
#include "threads.h"

namespace rdk::cpu {

#define RDK_OPERATOR(name, Name, NAME) \
  void name(const Name##Params& params, const Threads& threads);
#include "../operators.def"

}  // namespace rdk::cpu
