// What blocks see of each other's global_store. A block writes to memory itself, so that it sees
// its own values; what it has not released is taken back when it gives way, until its next turn,
// and when it ends, until the grid ends. A write is released if a fence follows it and an atomic
// follows the fence: that is what a block which takes the last ticket may rely on. So is one before
// a barrier of the block's cluster.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace emulation {

// When something happened in a block: who did it, and after how many barriers.
struct Moment {
  unsigned thread;
  unsigned warp;
  unsigned barriers;
  unsigned warp_barriers;  // of this warp: __syncwarp of all lanes that have not returned

  // Of two moments in the order in which they were emulated: whether that order is certain.
  bool precedes(const Moment& later) const {
    return thread == later.thread || barriers < later.barriers ||
           (warp == later.warp && warp_barriers < later.warp_barriers);
  }
};

class GlobalMemory {
 public:
  struct Turn;  // what a block that has given way has written

  void store(void* address, const void* value, size_t size, const Moment& moment);
  void fence(const Moment& moment);
  void store_atomic(void* address, const void* value, size_t size, const Moment& moment);

  void release();  // all that the running block has written
  Turn end_turn();
  void begin_turn(Turn turn);
  // A fenced write that no atomic follows may be seen by others or not.
  void end_block(bool fenced_writes_are_seen);
  void end_grid();
  void forget();  // after an error: memory stays as it is

 private:
  static constexpr size_t kMaxSize = 16;
  struct Write {
    char* address;
    size_t size;
    std::array<char, kMaxSize> old_value;
    std::array<char, kMaxSize> value;
    Moment moment;
    bool atomic;
    bool released;
    bool settled;  // others have seen it, or what was written there later
  };
  struct Fence {
    Moment moment;
    size_t writes;  // how many were in writes_
  };

  void record(void* address, const void* value, size_t size, const Moment& moment, bool atomic);
  void release_behind(const Fence& fence);
  void take_back();
  void publish();

  std::vector<Write> writes_;    // of the running block, in order
  std::vector<Fence> fences_;    // of the running block, not yet followed by an atomic
  std::vector<Write> withheld_;  // of finished blocks
};

struct GlobalMemory::Turn {
  std::vector<Write> writes;
  std::vector<Fence> fences;
};

}  // namespace emulation
