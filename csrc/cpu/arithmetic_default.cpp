// What every machine has: four floats, as SSE2 and NEON do.

#define RDK_PART_LANES 4
#include "arithmetic_lanes.h"
#include "capabilities.h"

namespace rdk::cpu {

constexpr Arithmetic kDefaultArithmetic = arithmetic_named("default");

}  // namespace rdk::cpu
