// cp.async of one thread. A copy lands at once or, its place garbage until then, when a wait says
// so: a GPU may do either.
#pragma once

#include <vector>

namespace emulation {

class AsyncCopies {
 public:
  static constexpr int kBytes = 16;

  void start(void* to, const void* from, bool lands_at_once);
  void commit() { ++groups_; }
  void wait(unsigned under_way);  // until no more than this many groups are

  bool any_under_way() const { return !copies_.empty(); }
  void forget();

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
