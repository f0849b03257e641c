// A thread of control with a stack of its own, switched to by hand in tens of nanoseconds.
#pragma once

#include <cstddef>

namespace emulation {

class Fiber {
 public:
  Fiber() = default;  // stands for the stack that is already running
  // body must not return. number spreads the stacks over the sets of the cache.
  Fiber(void (*body)(), unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Suspends from, which is running, and resumes to where it was suspended.
  static void switch_stacks(Fiber& from, Fiber& to);

  // What to run first in body, so that the sanitizer knows where it is.
  static void entered();

 private:
  void* stack_pointer_ = nullptr;
  void* mapping_ = nullptr;
  // Known to AddressSanitizer; of the launcher's stack it tells us on the first switch.
  const void* stack_bottom_ = nullptr;
  size_t stack_size_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace emulation
