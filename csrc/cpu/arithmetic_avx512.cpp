// AVX-512 (F, BW, DQ, VL). Headers come before the pragma, so that nothing that other files share
// is compiled for more than any machine has (see lanes.h).
#if defined(__x86_64__)

#include <immintrin.h>

#include "arithmetic.h"
#include "capabilities.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

#define RDK_PART_LANES 16
#include "arithmetic_lanes.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace rdk::cpu {

constexpr Arithmetic kAvx512Arithmetic = arithmetic_named("avx512");

}  // namespace rdk::cpu

#endif
