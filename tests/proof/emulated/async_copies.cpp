#include "async_copies.h"

#include <algorithm>
#include <cstring>

namespace emulation {

void AsyncCopies::start(void* to, const void* from, bool lands_at_once) {
  if (lands_at_once) {
    std::memcpy(to, from, kBytes);
  } else {
    std::memset(to, 0xff, kBytes);  // NaN, as every float
  }
  copies_.push_back({to, lands_at_once ? nullptr : from, groups_});
}

void AsyncCopies::wait(unsigned under_way) {
  const auto landed = [&](const Copy& copy) { return copy.group + under_way < groups_; };
  for (const Copy& copy : copies_) {
    if (copy.from != nullptr && landed(copy)) std::memcpy(copy.to, copy.from, kBytes);
  }
  copies_.erase(std::remove_if(copies_.begin(), copies_.end(), landed), copies_.end());
}

void AsyncCopies::forget() {
  copies_.clear();
  groups_ = 0;
}

}  // namespace emulation
