// What the environment asks of launches. On the one GPU where it was measured, an early launch
// saves at most 6 %, so it has to be asked for.

#include <cstdlib>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "plan.h"

namespace rdk {
namespace {

std::mutex mutex;
std::optional<Environment> kept;

bool is_set(const std::string& name) {
  const char* found = std::getenv(name.c_str());
  const std::string value = found == nullptr ? "" : found;
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw std::invalid_argument(name + " is \"" + value + "\"; set it to 1 or 0, or unset it");
}

}  // namespace

Environment environment() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!kept) kept = {is_set("RDK_EARLY_LAUNCH"), is_set("RDK_CLEAR_TICKETS")};
  return *kept;
}

void forget_environment() {
  const std::lock_guard<std::mutex> lock(mutex);
  kept.reset();
}

}  // namespace rdk
