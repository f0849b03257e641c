// cp.async of one thread: a copy reads its source only when a wait says that it has landed, and
// until then its place in shared memory is garbage.
#pragma once

#include <cstddef>
#include <vector>

namespace emulation {

class AsyncCopies {
 public:
  static constexpr size_t kBytes = 16;

  void start(void* to, const void* from);
  void commit() { ++groups_; }
  void wait(unsigned under_way);  // until no more than this many groups are

  bool any_under_way() const { return !copies_.empty(); }
  void forget();

 private:
  struct Copy {
    void* to;
    const void* from;
    unsigned group;  // how many were committed before it
  };
  std::vector<Copy> copies_;
  unsigned groups_ = 0;
};

}  // namespace emulation
