// The ways in which the files of this folder are compiled, and all that differs between them: by
// nvcc; by NVRTC, kernels alone; by a host compiler, what starts kernels; and, for the emulated
// tests, all by a host compiler with the emulator's header in CUDA's place.
#pragma once

#include "../common/host_device.h"

#if defined(RDK_EMULATED)
#include "device_emulation.h"  // of tests/proof/emulated
#elif !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>
#endif

#if !defined(__CUDACC_RTC__)
#define RDK_HAS_HOST
#endif

#if defined(__CUDACC__)
namespace rdk {

// The same number, of which the compiler knows nothing: what a rare branch makes of it is not made
// before the loop around that branch and kept in registers that the loop lacks.
RDK_DEVICE int made_here(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// For workspace that blocks exchange. Loads bypass the L1 cache, which is not coherent between
// multiprocessors; the emulator withholds stores until a fence publishes them.
template <typename T>
RDK_DEVICE void global_store(T* address, T value) {
  *address = value;
}
template <typename T>
RDK_DEVICE T global_load(const T* address) {
  return __ldcg(address);
}

// Adds to shared memory, whatever other threads add meanwhile. Returns what was there.
RDK_DEVICE unsigned shared_add(unsigned* address, unsigned value) {
  return atomicAdd(address, value);
}

// Stores to memory that is -1, whatever other threads of the block do meanwhile. Returns what was
// there.
RDK_DEVICE int claim(int* address, int value) { return atomicCAS(address, -1, value); }

// Adds to what blocks count together. The stores before it are visible to whoever adds later, and
// its loads after it see theirs.
RDK_DEVICE uint64_t acquire_release_add(uint64_t* address, uint64_t value) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(address), "l"(value)
               : "memory");
  return old;
}

// Of what blocks count together; these order nothing else.
RDK_DEVICE uint64_t relaxed_load(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
RDK_DEVICE void relaxed_store(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
// The stores before it are visible to whoever reads this by acquire_release_add.
RDK_DEVICE void release_store(uint64_t* address, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
RDK_DEVICE void compare_and_swap(uint64_t* address, uint64_t old, uint64_t value) {
  uint64_t found;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(found)
               : "l"(address), "l"(old), "l"(value)
               : "memory");
}

// How often a block that has nothing to do looks whether others have something: for some 100 us.
constexpr int kPatience = 128;
RDK_DEVICE void sleep_briefly() { __nanosleep(100); }

// By all threads of the blocks of a cluster: none goes on before all have come, and then it sees
// what they stored before. A device without clusters has no launch that comes here.
RDK_DEVICE void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release;\n\t"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
#endif
}
// The same in two parts, which orders no memory: behind the wait all blocks of the cluster run.
RDK_DEVICE void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
RDK_DEVICE void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// Stores to shared memory of the block with that number in the cluster, where this address would be
// its own. That block runs, and has not left; it reads behind the cluster's next barrier, by
// cluster_load, which also reads global memory that only this block writes. Without clusters a
// block is one of its own.
RDK_DEVICE void cluster_store(float* shared, int block, float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(to) : "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
#else
  *shared = value;
#endif
}
RDK_DEVICE void cluster_store(float* shared, int block, float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(to) : "r"(block));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second)
               : "memory");
#else
  shared[0] = first;
  shared[1] = second;
#endif
}
RDK_DEVICE float cluster_load(const float* shared) { return *shared; }

// By all threads, before they read or write any memory but their own: a kernel may be launched
// early, while those before it in the stream still run (launch.h). Behind this all of them have
// ended, what they wrote is visible, and the kernel behind this one may be launched early.
RDK_DEVICE void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "griddepcontrol.wait;\n\t"
      "griddepcontrol.launch_dependents;" ::
          : "memory");
#endif
}

// exp in three instructions, with a relative error of about 2^-22 for the large terms of a sum;
// results below 2^-126 become zero.
RDK_DEVICE float fast_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
}

RDK_DEVICE float half_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// The larger of each of two elements, as by fmaxf: a NaN is passed over.
RDK_DEVICE unsigned larger_bfloat16s(unsigned a, unsigned b) {
  unsigned larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
RDK_DEVICE unsigned larger_halves(unsigned a, unsigned b) {
  unsigned larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// Copies 16 bytes to shared memory while the thread goes on. The copies up to a commit are a group.
// After async_wait<kGroups>, all but the last kGroups groups have landed, for the thread that made
// them.
RDK_DEVICE void async_copy(uint4* shared, const uint4* global) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
RDK_DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
RDK_DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

#if defined(RDK_HAS_HOST)
// What a compiled kernel says by itself, and the emulator has to be told.
inline void introduce(const void*, const char*, int64_t) {}
#endif

#define RDK_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

}  // namespace rdk
#endif
