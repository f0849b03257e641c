#include "global_memory.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cuda_emulation.h"

namespace emulation {

void GlobalMemory::record(void* address, const void* value, size_t size, const Moment& moment,
                          bool atomic) {
  Write write{static_cast<char*>(address), size, {}, {}, moment, atomic, atomic, false};
  std::memcpy(write.old_value.data(), address, size);
  std::memcpy(write.value.data(), value, size);
  std::memcpy(address, value, size);
  writes_.push_back(write);
}

void GlobalMemory::store(void* address, const void* value, size_t size, const Moment& moment) {
  record(address, value, size, moment, false);
}

void GlobalMemory::fence(const Moment& moment) {
  if (!writes_.empty()) fences_.push_back({moment, writes_.size()});
}

void GlobalMemory::release_behind(const Fence& fence) {
  for (size_t i = 0; i < fence.writes; ++i) {
    writes_[i].released |= writes_[i].moment.precedes(fence.moment);
  }
}

void GlobalMemory::store_atomic(void* address, const void* value, size_t size,
                                const Moment& moment) {
  const auto open = std::partition(fences_.begin(), fences_.end(), [&](const Fence& fence) {
    return fence.moment.precedes(moment);
  });
  std::for_each(fences_.begin(), open, [&](const Fence& fence) { release_behind(fence); });
  fences_.erase(fences_.begin(), open);

  if (writes_.empty()) {
    std::memcpy(address, value, size);
  } else {
    record(address, value, size, moment, true);
  }
}

void GlobalMemory::take_back() {
  std::set<char*> atomics;
  for (auto write = writes_.rbegin(); write != writes_.rend(); ++write) {
    if (write->settled) continue;
    if (std::memcmp(write->address, write->value.data(), write->size) != 0) {
      throw Error("memory written by global_store was then written without it");
    }
    std::memcpy(write->address, write->old_value.data(), write->size);
    if (write->atomic) {
      atomics.insert(write->address);
    } else {  // a later atomic has seen it, so it had reached memory
      const auto atomic = atomics.lower_bound(write->address);
      write->released |= atomic != atomics.end() && *atomic < write->address + write->size;
    }
  }
}

// Writes what is released, and settles what lies under it.
void GlobalMemory::publish() {
  std::set<char*> above;
  for (const Write& write : writes_) {
    if (write.released && !write.settled) {
      std::memcpy(write.address, write.value.data(), write.size);
    }
  }
  for (auto write = writes_.rbegin(); write != writes_.rend(); ++write) {
    if (write->released) above.insert(write->address);
    write->settled |= above.count(write->address) > 0;
  }
}

void GlobalMemory::release() {
  for (Write& write : writes_) write.released = true;
  fences_.clear();
}

GlobalMemory::Turn GlobalMemory::end_turn() {
  take_back();
  publish();
  return {std::exchange(writes_, {}), std::exchange(fences_, {})};
}

void GlobalMemory::begin_turn(Turn turn) {
  writes_ = std::move(turn.writes);
  fences_ = std::move(turn.fences);
  for (Write& write : writes_) {
    if (write.settled) continue;
    std::memcpy(write.old_value.data(), write.address, write.size);
    std::memcpy(write.address, write.value.data(), write.size);
  }
}

void GlobalMemory::end_block(bool fenced_writes_are_seen) {
  if (fenced_writes_are_seen) {
    for (const Fence& fence : fences_) release_behind(fence);
  }
  take_back();
  publish();
  for (const Write& write : writes_) {
    if (!write.settled) withheld_.push_back(write);
  }
  writes_.clear();
  fences_.clear();
}

void GlobalMemory::end_grid() {
  for (const Write& write : withheld_) {
    std::memcpy(write.address, write.value.data(), write.size);
  }
  withheld_.clear();
}

void GlobalMemory::forget() {
  writes_.clear();
  fences_.clear();
  withheld_.clear();
}

}  // namespace emulation
