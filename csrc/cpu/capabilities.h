// The instruction sets that `arithmetic()` chooses from.
#pragma once

#include <vector>

#include "arithmetic.h"

namespace rdk::cpu {

extern const Arithmetic kDefaultArithmetic;
#if defined(__x86_64__)
extern const Arithmetic kAvx2Arithmetic;
extern const Arithmetic kAvx512Arithmetic;
#endif

// Those that this machine has, the best first.
std::vector<const Arithmetic*> available_arithmetic();

}  // namespace rdk::cpu
