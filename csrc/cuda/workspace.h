// How plans count: blocks, chunks and bytes of shared memory.
#pragma once

#include <algorithm>

#include "plan.h"

namespace rdk {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

inline int64_t chunks_of(const DraftColumns& draft) {
  return chunks_of(draft.draft_size) + chunks_of(draft.dynamic_size);
}

// How many blocks share each of `count` rows or sequences: as many as are wanted, but together no
// more than `at_once`, because one more would wait for a second wave.
inline int64_t splits_of(int64_t wanted, int64_t at_once, int64_t count) {
  return std::max<int64_t>(1, std::min(wanted, at_once / std::max<int64_t>(1, count)));
}

// How many blocks a cluster has that may have `most`: a power of two, of which each part of a GPU
// holds a whole number.
inline int64_t power_of_two_up_to(int64_t most) {
  int64_t power = 1;
  while (2 * power <= most) power *= 2;
  return power;
}

// Whether every chunk of the drafter's rows is whole, as Plain has it (cut.cuh).
inline bool are_plain(const DraftColumns& draft, const float* spread, int64_t rank) {
  const int64_t elements = draft.dtype == Dtype::kFloat32 ? 4 : 8;  // in 16 bytes
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return draft.dynamic_size == 0 && draft.draft_size > 0 && draft.draft_size % kChunk == 0 &&
         aligned(draft.logits.data) && draft.logits.outer_stride % elements == 0 &&
         draft.logits.inner_stride % elements == 0 && aligned(draft.bias) &&
         (rank == 0 || (rank == 1 && aligned(spread)));
}

// CUDA's limits are on static and dynamic shared memory together. A block may always have this
// much.
constexpr int64_t kAlwaysAllowed = 48 * 1024;

// The most dynamic shared memory that a launch may ask for.
template <typename Launch>
int64_t most_shared_bytes(const Machine& machine) {
  return std::max<int64_t>(1, machine.shared_bytes - Launch::kStaticSharedBytes);
}

// LaunchShape::allowed_bytes of a kernel that may ask for the most.
template <typename Launch>
int64_t allowed_bytes(const Machine& machine) {
  return machine.shared_bytes > kAlwaysAllowed ? most_shared_bytes<Launch>(machine) : 0;
}

}  // namespace rdk
