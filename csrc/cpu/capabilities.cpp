// Which arithmetic this machine runs.

#include "capabilities.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace rdk::cpu {

std::vector<const Arithmetic*> available_arithmetic() {
  std::vector<const Arithmetic*> found;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2");  // no machine has it without F16C
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(&kAvx512Arithmetic);
  }
  if (avx2) found.push_back(&kAvx2Arithmetic);
#endif
  found.push_back(&kDefaultArithmetic);
  return found;
}

namespace {

const Arithmetic& choose() {
  const std::vector<const Arithmetic*> found = available_arithmetic();
  const char* asked = std::getenv("RDK_CPU_CAPABILITY");
  if (asked == nullptr || *asked == '\0') return *found.front();
  std::string names;
  for (const Arithmetic* arithmetic : found) {
    if (arithmetic->name == std::string(asked)) return *arithmetic;
    names += (names.empty() ? "" : " or ") + std::string(arithmetic->name);
  }
  throw std::runtime_error("RDK_CPU_CAPABILITY is '" + std::string(asked) +
                           "'; on this machine it must be " + names + ", or not set");
}

}  // namespace

const Arithmetic& arithmetic() {
  static const Arithmetic& chosen = choose();
  return chosen;
}

}  // namespace rdk::cpu
