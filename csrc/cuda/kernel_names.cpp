// The names of all kernels, which NVRTC compiles them by, and what Python is told of them.

#include "plan.h"

namespace rdk {
namespace {

#define RDK_NAME(...) #__VA_ARGS__
#define RDK_OPERATOR(name, Name, NAME) \
  constexpr const char* k##Name[] = {RDK_##NAME##_KERNELS(RDK_NAME)};
#include "../operators.def"

template <typename Launch, size_t kCount>
std::string entry(const char* operator_name, const char* launch,
                  const char* const (&names)[kCount]) {
  std::string list;
  for (const char* name : names) list += (list.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  return "\"" + std::string(operator_name) + "\": {\"launch\": \"" + launch +
         "\", \"launch_bytes\": " + std::to_string(sizeof(Launch)) +
         ", \"static_shared_bytes\": " + std::to_string(Launch::kStaticSharedBytes) +
         ", \"kernels\": [" + list + "]}";
}

}  // namespace

#define RDK_OPERATOR(name, Name, NAME) \
  const char* kernel_name(const Name##Launch& launch) { return k##Name[launch.kernel()]; }
#include "../operators.def"

std::string kernels_as_json() {
  std::string entries;
#define RDK_OPERATOR(name, Name, NAME) \
  entries += (entries.empty() ? "" : ", ") + entry<Name##Launch>(#name, #Name "Launch", k##Name);
#include "../operators.def"
  return "{" + entries + "}";
}

}  // namespace rdk
