#include "registration.h"

#include <array>
#include <deque>
#include <string>
#include <vector>

namespace rdk::ops {
namespace {

std::vector<Listed>& operators() {
  static std::vector<Listed> listed;
  return listed;
}

// Lives as long as the process, as the operators do.
TorchLibraryHandle library(const char* name_space, const char* dispatch_key) {
  TorchLibraryHandle made = nullptr;
  const AOTITorchError error =
      dispatch_key == nullptr
          ? aoti_torch_library_init_fragment(name_space, __FILE__, __LINE__, &made)
          : aoti_torch_library_init_impl(name_space, dispatch_key, __FILE__, __LINE__, &made);
  return error == AOTI_TORCH_SUCCESS ? made : nullptr;
}

}  // namespace

bool list_operator(const Listed& listed) {
  operators().push_back(listed);
  return true;
}

}  // namespace rdk::ops

bool rdk_register(const char* name_space) {
  using namespace rdk::ops;
  static std::deque<std::string> names;  // torch keeps the pointer
  name_space = names.emplace_back(name_space).c_str();
  const TorchLibraryHandle definitions = library(name_space, nullptr);
  const std::array<TorchLibraryHandle, 2> devices = {library(name_space, "CPU"),
                                                     library(name_space, "CUDA")};
  bool registered = definitions != nullptr && devices[0] != nullptr && devices[1] != nullptr;
  for (const Listed& each : operators()) {
    registered =
        registered && aoti_torch_library_def(definitions, each.schema) == AOTI_TORCH_SUCCESS;
    for (const TorchLibraryHandle device : devices) {
      registered = registered && torch_library_impl(device, each.name, each.boxed,
                                                    TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS;
    }
  }
  return registered;
}
