// How plans count: blocks, chunks, bytes of workspace.
#pragma once

#include "plan.h"

namespace rdk {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

}  // namespace rdk
