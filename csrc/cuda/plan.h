// What the host decides about a launch, the same for all ways to start it: kernels compiled by
// nvcc, by NVRTC, or run by the emulator.
#pragma once

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

// Of every operator:
//   plan         decides how work is cut into blocks and how much workspace that takes: fills
//                everything but params, from them
//   place        hands out the parts of the workspace; with a null pointer it only counts the bytes
//   kernel_name  the kernel that is launched, as in "draft_kernel<float, Whole>": for those who
//                compile and start it by name
#define RDK_OPERATOR(name, Name, NAME)                     \
  void plan(const Machine& machine, Name##Launch* launch); \
  void place(void* workspace, Name##Launch* launch);       \
  const char* kernel_name(const Name##Launch& launch);
#include "../operators.def"

// All of them, as JSON: by operator, which is the stem of the kernel's file, the struct that it is
// launched with, that struct's bytes, the static shared memory of a block, and the names.
std::string kernels_as_json();

}  // namespace rdk
