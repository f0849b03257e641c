#include "cluster_memory.h"

#include <algorithm>

namespace emulation {
namespace {

constexpr const char* kUnordered = ", and no barrier between them orders the two";

}  // namespace

std::string ClusterMemory::store(const Store& made) {
  for (const Load& other : loads_) {
    const bool ordered = made.from == made.to.block && other.moment.precedes(made.moment);
    if (other.at.meets(made.to) && !ordered) {
      return "race: block " + std::to_string(made.to.block) + " of the cluster has loaded it" +
             kUnordered;
    }
  }
  for (const Store& other : stores_) {
    const bool ordered = made.from == other.from && other.moment.precedes(made.moment);
    if (other.to.meets(made.to) && !ordered) {
      return "race: block " + std::to_string(other.from) + " of the cluster has stored there" +
             kUnordered;
    }
  }
  stores_.push_back(made);
  return "";
}

std::string ClusterMemory::load(const Place& at, const Moment& moment) {
  for (const Store& other : stores_) {
    const bool ordered = other.from == at.block && other.moment.precedes(moment);
    if (other.to.meets(at) && !ordered) {
      return "race: block " + std::to_string(other.from) + " of the cluster has stored it" +
             kUnordered;
    }
  }
  loads_.push_back({at, moment});
  return "";
}

std::string ClusterMemory::leave(unsigned block) const {
  const auto from_another = [&](const Store& each) {
    return each.to.block == block && each.from != block;
  };
  const auto found = std::find_if(stores_.begin(), stores_.end(), from_another);
  if (found == stores_.end()) return "";
  return "it returns while block " + std::to_string(found->from) +
         " of the cluster stores into its shared memory";
}

}  // namespace emulation
