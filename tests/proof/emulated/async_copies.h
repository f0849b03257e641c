// cp.async of one thread. A copy lands at once or, its place garbage until then, when a wait says
// so: a GPU may do either.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

namespace emulation {

class AsyncCopies {
 public:
  static constexpr int kBytes = 16;

  void start(void* to, const void* from, bool lands_at_once) {
    if (lands_at_once) {
      std::memcpy(to, from, kBytes);
    } else {
      std::memset(to, 0xff, kBytes);  // NaN, as every float
    }
    copies_.push_back({to, lands_at_once ? nullptr : from, groups_});
  }
  void commit() { ++groups_; }
  void wait(unsigned under_way) {  // until no more than this many groups are
    const auto landed = [&](const Copy& copy) { return copy.group + under_way < groups_; };
    for (const Copy& copy : copies_) {
      if (copy.from != nullptr && landed(copy)) std::memcpy(copy.to, copy.from, kBytes);
    }
    copies_.erase(std::remove_if(copies_.begin(), copies_.end(), landed), copies_.end());
  }

  bool any_under_way() const { return !copies_.empty(); }
  void forget() {
    copies_.clear();
    groups_ = 0;
  }

 private:
  struct Copy {
    void* to;
    const void* from;  // null: has landed
    unsigned group;    // how many were committed before it
  };
  std::vector<Copy> copies_;
  unsigned groups_ = 0;
};

}  // namespace emulation
