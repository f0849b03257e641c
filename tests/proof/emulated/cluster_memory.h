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
  std::string store(const Store& made) {
    for (const Load& other : loads_) {
      const bool ordered = made.from == made.to.block && other.moment.precedes(made.moment);
      if (other.at.meets(made.to) && !ordered) return race(made.to.block, "loaded it");
    }
    for (const Store& other : stores_) {
      const bool ordered = made.from == other.from && other.moment.precedes(made.moment);
      if (other.to.meets(made.to) && !ordered) return race(other.from, "stored there");
    }
    stores_.push_back(made);
    return "";
  }
  std::string load(const Place& at, const Moment& moment) {
    for (const Store& other : stores_) {
      const bool ordered = other.from == at.block && other.moment.precedes(moment);
      if (other.to.meets(at) && !ordered) return race(other.from, "stored it");
    }
    loads_.push_back({at, moment});
    return "";
  }
  std::string leave(unsigned block) const {
    for (const Store& each : stores_) {
      if (each.to.block == block && each.from != block) {
        return "it returns while block " + std::to_string(each.from) +
               " of the cluster stores into its shared memory";
      }
    }
    return "";
  }

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
  static std::string race(unsigned block, const char* did) {
    return "race: block " + std::to_string(block) + " of the cluster has " + did +
           ", and no barrier between them orders the two";
  }
  std::vector<Store> stores_;  // since the last barrier of the cluster
  std::vector<Load> loads_;
};

}  // namespace emulation
