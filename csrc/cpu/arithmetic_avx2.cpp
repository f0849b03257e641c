// AVX2 with F16C. Headers come before the pragma, so that nothing that other files share is
// compiled for more than any machine has (see lanes.h).
#if defined(__x86_64__)

#include <immintrin.h>

#include "arithmetic.h"
#include "capabilities.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define RDK_PART_LANES 8
#include "arithmetic_lanes.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace rdk::cpu {

constexpr Arithmetic kAvx2Arithmetic = arithmetic_named("avx2");

}  // namespace rdk::cpu

#endif
