// What the host needs to launch a kernel: how work is cut into blocks, and how much workspace that
// takes. Every decision is made in the plan_* functions, once for all ways to launch.
#pragma once

#include "../params.h"

#if defined(RDK_EMULATED)
#include "cuda_emulation.h"
#elif !defined(__CUDACC_RTC__)  // NVRTC compiles kernels alone: what launches them is left out
#include <cuda_runtime.h>
#endif

namespace rdk {

// What of the device decides a launch.
struct Machine {
  int64_t multiprocessors;
  int64_t shared_bytes;  // of dynamic shared memory that one block may have
};

struct LaunchShape {
  int64_t blocks;
  int64_t threads;
  int64_t shared_bytes;
  int64_t workspace_bytes;
  int64_t zeroed_bytes;  // of the workspace, from its start, zero before the launch
};

RDK_HOST_DEVICE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

#if !defined(__CUDACC_RTC__)

inline int64_t chunks_of(int64_t columns) { return divide_up(columns, kChunk); }

// Hands out parts of one allocation, each 16-byte aligned; over a null pointer it only counts.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(void* memory) : memory_(static_cast<unsigned char*>(memory)) {}

  template <typename T>
  T* take(int64_t count) {
    T* part = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += divide_up(count * static_cast<int64_t>(sizeof(T)), 16) * 16;
    return part;
  }
  int64_t bytes() const { return bytes_; }

 private:
  unsigned char* memory_;
  int64_t bytes_ = 0;
};

#endif

}  // namespace rdk
