// What csrc/cuda/compat.cuh gives kernels on a GPU, on the CPU.
#pragma once

#include "cuda_emulation.h"

namespace rdk {

using emulation::introduce;

inline int made_here(int number) { return number; }

inline void async_copy(uint4* shared, const uint4* global) {
  emulation::async_copy(shared, global);
}
inline void async_commit() { emulation::async_commit(); }
template <int kGroups>
void async_wait() {
  emulation::async_wait(kGroups);
}

// Threads give way to each other only at barriers and collectives.
inline unsigned shared_add(unsigned* address, unsigned value) {
  const unsigned old = *address;
  *address += value;
  return old;
}

inline int claim(int* address, int value) {
  const int old = *address;
  if (old == -1) *address = value;
  return old;
}

inline uint64_t acquire_release_add(uint64_t* address, uint64_t value) {
  emulation::fence();
  const uint64_t old = atomicAdd(address, value);
  emulation::fence();
  return old;
}

inline uint64_t relaxed_load(const uint64_t* address) {
  const uint64_t value = *address;
  emulation::pause();
  return value;
}
inline void relaxed_store(uint64_t* address, uint64_t value) {
  emulation::store_atomic(address, &value, sizeof(value));
}
inline void release_store(uint64_t* address, uint64_t value) {
  emulation::fence();
  relaxed_store(address, value);
}
inline void compare_and_swap(uint64_t* address, uint64_t old, uint64_t value) {
  if (*address == old) relaxed_store(address, value);
}

constexpr int kPatience = 8;
inline void sleep_briefly() { emulation::pause(); }

inline void cluster_barrier() { emulation::cluster_barrier(emulation::Site::here()); }
inline void cluster_arrive() { emulation::cluster_arrive(emulation::Site::here()); }
inline void cluster_wait() { emulation::cluster_wait(emulation::Site::here()); }

inline void cluster_store(float* shared, int block, float value) {
  emulation::cluster_store(shared, static_cast<unsigned>(block), value);
}
inline void cluster_store(float* shared, int block, float first, float second) {
  cluster_store(shared, block, first);
  cluster_store(shared + 1, block, second);
}
inline float cluster_load(const float* shared) { return emulation::cluster_load(shared); }

inline void wait_for_earlier_kernels() { emulation::wait_for_earlier_kernels(); }

inline float fast_exp(float x) { return expf(x); }

// The fields moved to float32's, times 2^112 to correct the exponent, subnormals included;
// infinities and NaN get float32's exponent instead.
inline float half_to_float(uint16_t bits) {
  const unsigned sign = static_cast<unsigned>(bits & 0x8000u) << 16;
  const unsigned fields = static_cast<unsigned>(bits & 0x7fffu) << 13;
  const unsigned magnitude = fields >= 0x0f800000u
                                 ? fields | 0x7f800000u
                                 : __float_as_uint(__uint_as_float(fields) * 5.192296858534828e33f);
  return __uint_as_float(sign | magnitude);
}

// number(bits) is what an element stands for.
template <typename Number>
unsigned larger_pair(unsigned a, unsigned b, Number&& number) {
  const auto larger = [&](uint16_t x, uint16_t y) -> unsigned {
    return number(y) > number(x) || number(x) != number(x) ? y : x;
  };
  const auto low = [](unsigned pair) { return static_cast<uint16_t>(pair); };
  const auto high = [](unsigned pair) { return static_cast<uint16_t>(pair >> 16); };
  return larger(high(a), high(b)) << 16 | larger(low(a), low(b));
}
inline unsigned larger_bfloat16s(unsigned a, unsigned b) {
  return larger_pair(
      a, b, [](uint16_t bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); });
}
inline unsigned larger_halves(unsigned a, unsigned b) { return larger_pair(a, b, half_to_float); }

#define RDK_DYNAMIC_SHARED(name) \
  unsigned char* const name = static_cast<unsigned char*>(emulation::dynamic_shared())

}  // namespace rdk
