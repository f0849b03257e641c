// What the host decides about a launch, the same for all ways to start it: kernels compiled by
// nvcc, by NVRTC, or run by the emulator.
#pragma once

#include <array>
#include <cstring>
#include <string>

#include "launch.h"

namespace rdk {

// The facts of a device that decide a launch.
struct Machine {
  int64_t multiprocessors;
  int64_t shared_bytes;  // that a block may have, static and dynamic, once its kernel is allowed it
  int64_t cluster;       // the most blocks of one; 1 where the device or the starter has none
  bool early;            // whether it can launch kernels early
};

// Blocks of a thread block cluster that every device with clusters takes: CUDA's portable size.
constexpr int64_t kMostCluster = 8;

// RDK_EARLY_LAUNCH and RDK_CLEAR_TICKETS, read at the first launch, because a launch has no time
// for it.
struct Environment {
  bool early_launches;
  bool clear_tickets;  // first, so that a sanitizer does not see memory read that nobody wrote
};
Environment environment();
inline bool clears_tickets(const LaunchShape& shape) {
  return shape.ticket_bytes > 0 && environment().clear_tickets;
}
void forget_environment();  // for tests and measurements: the next launch reads it anew

// The memory of a launch: one allocation, of which the pointers that are added have a part each.
class Workspace {
 public:
  template <typename T>
  void add(T** pointer, int64_t count) {
    parts_[count_++] = {pointer, bytes_};
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;  // what follows is aligned
  }
  int64_t bytes() const { return bytes_; }

  void place(void* memory) const {
    for (size_t i = 0; i < count_; ++i) {
      const char* part = static_cast<char*>(memory) + parts_[i].offset;
      std::memcpy(parts_[i].pointer, &part, sizeof part);
    }
  }

 private:
  struct Part {
    void* pointer;  // of any type of pointer
    int64_t offset;
  };
  std::array<Part, 16> parts_;
  size_t count_ = 0;
  int64_t bytes_ = 0;
};

// Of every operator:
//   plan         decides how work is cut into blocks: fills everything but params, from them, and
//                returns the workspace, which is still to be placed
//   kernel_name  the kernel that is launched, as in "draft_kernel<float, Whole>": for those who
//                compile and start it by name
#define RDK_OPERATOR(name, Name, NAME)                          \
  Workspace plan(const Machine& machine, Name##Launch* launch); \
  const char* kernel_name(const Name##Launch& launch);
#include "../operators.def"

// All of them, as JSON: by operator, which is the stem of the kernel's file, the struct that it is
// launched with, that struct's bytes, the static shared memory of a block, and the names.
std::string kernels_as_json();

}  // namespace rdk
