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
std::optional<bool> kept;

bool read() {
  const char* value = std::getenv("RDK_EARLY_LAUNCH");
  const std::string early = value == nullptr ? "" : value;
  if (early.empty() || early == "0") return false;
  if (early == "1") return true;
  throw std::invalid_argument("RDK_EARLY_LAUNCH is \"" + early +
                              "\"; set it to 1 or 0, or unset it");
}

}  // namespace

bool early_launches() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!kept) kept = read();
  return *kept;
}

void forget_environment() {
  const std::lock_guard<std::mutex> lock(mutex);
  kept.reset();
}

}  // namespace rdk
