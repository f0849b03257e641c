// What the environment asks of launches. What either saves is not measured yet, so it has to be
// asked for.

#include <cstdlib>
#include <mutex>
#include <stdexcept>

#include "plan.h"

namespace rdk {
namespace {

std::mutex mutex;
std::optional<Environment> kept;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(const std::string& name, const std::string& value, const char* choices) {
  throw std::invalid_argument(name + " is \"" + value + "\"; set it to " + choices +
                              ", or unset it");
}

std::optional<VerifyOrder> verify_order() {
  const std::string order = variable("RDK_VERIFY_ORDER");
  if (order == "split") return VerifyOrder::kSplit;
  if (order == "in-order") return VerifyOrder::kInOrder;
  if (order == "queue") return VerifyOrder::kQueue;
  if (!order.empty()) refuse("RDK_VERIFY_ORDER", order, "split, in-order or queue");
  return {};
}

bool early() {
  const std::string early = variable("RDK_EARLY_LAUNCH");
  if (!early.empty() && early != "0" && early != "1") refuse("RDK_EARLY_LAUNCH", early, "1 or 0");
  return early == "1";
}

}  // namespace

Environment environment() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!kept) kept = {verify_order(), early()};
  return *kept;
}

void forget_environment() {
  const std::lock_guard<std::mutex> lock(mutex);
  kept.reset();
}

}  // namespace rdk
