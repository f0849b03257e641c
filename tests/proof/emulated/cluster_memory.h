// What blocks of a cluster store into each other's shared memory. Such a store lands when the
// cluster next meets at a barrier that orders memory, and until then it is an error to read it, to
// store there too, or to leave. Where a block's own memory is meant, its barriers are enough.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "global_memory.h"

namespace emulation {

class ClusterMemory {
 public:
  // A place in the shared memory of a block, which every block has at the same one.
  struct Place {
    unsigned block;  // number in the cluster
    size_t offset;
    size_t size;

    bool meets(const Place& other) const {
      return block == other.block && offset < other.offset + other.size &&
             other.offset < offset + size;
    }
  };
  struct Store {
    Place to;
    unsigned from;  // the block
    Moment moment;  // in that block
    std::array<char, 16> value;
  };

  // Each says what is wrong, or nothing.
  std::string store(const Store& made);
  std::string load(const Place& at, const Moment& moment);
  std::string leave(unsigned block) const;

  // At a barrier of the cluster: gives what has been stored to land(store), and forgets.
  template <typename Land>
  void meet(Land&& land) {
    for (const Store& each : stores_) land(each);
    stores_.clear();
    loads_.clear();
  }

 private:
  struct Load {
    Place at;
    Moment moment;
  };
  std::vector<Store> stores_;  // since the last barrier of the cluster
  std::vector<Load> loads_;
};

}  // namespace emulation
