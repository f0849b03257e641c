// The threads of a block that could go on, and the choice among them. A thread is in it at most
// once.
#pragma once

#include <algorithm>
#include <array>

#include "random.h"

namespace emulation {

constexpr unsigned kMaxThreads = 1024;

class ReadyQueue {
 public:
  // kInOrder is first in, first out. kDepthFirst lets a warp run as far ahead of the others as
  // barriers allow, which uniformly random choices hardly ever do.
  enum class Order { kInOrder, kRandom, kDepthFirst };

  void clear(Order order) {
    order_ = order;
    begin_ = size_ = 0;
  }
  bool empty() const { return size_ == 0; }
  void push(unsigned thread) { at(size_++) = thread; }

  unsigned pop(Random& random) {
    if (order_ == Order::kDepthFirst) return at(--size_);
    if (order_ == Order::kRandom) std::swap(at(0), at(random.below(size_)));
    const unsigned thread = at(0);
    ++begin_;
    --size_;
    return thread;
  }

  // All threads of a block that has just begun or passed a barrier; nothing else is in the queue.
  void push_block(unsigned threads, Random& random) {
    for (unsigned thread = 0; thread < threads; ++thread) push(thread);
    if (order_ != Order::kDepthFirst) return;
    for (unsigned last = size_; last > 1; --last) std::swap(at(last - 1), at(random.below(last)));
  }

 private:
  unsigned& at(unsigned i) { return ring_[(begin_ + i) % kMaxThreads]; }

  Order order_ = Order::kInOrder;
  unsigned begin_ = 0;
  unsigned size_ = 0;
  std::array<unsigned, kMaxThreads> ring_;
};

}  // namespace emulation
